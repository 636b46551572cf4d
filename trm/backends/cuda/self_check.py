"""Every process checks the Triton kernels on its device before it uses them, for models that they compute."""

from __future__ import annotations

import logging

import torch

from trm.backends.base import Backend
from trm.backends.cuda.tiles import architecture_of, cover
from trm.study.schema import ModelConfig

log = logging.getLogger("trm")


def check_kernels(backend: Backend, model: ModelConfig, cells: int, dtype: torch.dtype) -> None:
    """Compare a run's Triton kernels with PyTorch; if one is wrong or fails on any worker, fall back to PyTorch.

    A model that they do not compute goes through torch.compile. The reason is logged and recorded as
    `backend.network_note`. Does nothing unless the backend's network is `triton`.
    `cells`: of a puzzle; `dtype`: the forward dtype.
    """
    if backend.network != "triton":
        return
    if not cover(model, cells, dtype, architecture_of(backend.device)):
        what = f"this model in {str(dtype).removeprefix('torch.')}"
        backend.network_note = f"the Triton kernels do not compute {what}: torch.compile does"
        if "compiled" not in backend.candidates:  # they were asked for
            log.warning("%s", backend.network_note)
        backend.network, backend.candidates = "compiled", ()
        return
    problem = _problem(model, cells, dtype, backend.device)
    answers = backend.gather(torch.tensor([float(problem is not None)]))
    wrong = [rank for rank, answer in enumerate(answers) if answer.item()]
    if not wrong:
        return
    backend.network = "plain"
    reason = problem or f"the check failed on worker {wrong[0]}"
    backend.network_note = f"the Triton kernels are not used: {reason}; PyTorch computes the network"
    log.warning(
        "%s, which is slower. `python -m benchmarks.gpu --only checks --out FOLDER` shows all checks",
        backend.network_note,
    )


def _problem(model: ModelConfig, cells: int, dtype: torch.dtype, device: torch.device) -> str | None:
    """What is wrong with the kernels; None if they pass."""
    try:
        from trm.backends.cuda.checks import checks_of_run

        for check in checks_of_run(model, cells, dtype, device):
            if not check.passed:
                return f"{check.name} has a relative error of {check.error:.1e} (limit {check.limit:.0e})"
    except Exception as error:  # the compiler's, the driver's, or a tile too large for this chip
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return f"one fails on this device ({first})"
    return None
