"""Whether the Triton kernels compute the right thing on this device: checked by every process before it uses them."""

from __future__ import annotations

import logging

import torch

from trm.devices.base import Backend
from trm.study.schema import ModelConfig

log = logging.getLogger("trm")


def trust_or_replace(
    backend: Backend,
    model: ModelConfig,
    cells: int,
    symbols: int,
    dtype: torch.dtype,
    optimiser: str | None = None,
) -> None:
    """Compare each Triton kernel of a run with plain PyTorch; if one differs or fails, the network does not use them.

    All workers decide alike. One sentence goes to the log and, as `backend.network_note`, into the run's record.

    Args:
        backend: where it runs; does nothing unless its network is `triton`.
        model, cells, symbols: the run's sizes; the batch is a small one.
        dtype: of activations and products.
        optimiser: the run's optimiser; None: inference.
    """
    if backend.network != "triton":
        return
    problem = _problem(model, cells, symbols, dtype, backend.device, optimiser)
    answers = backend.gather(torch.tensor([float(problem is not None)]))
    wrong = [rank for rank, answer in enumerate(answers) if answer.item()]
    if not wrong:
        return
    backend.network = "fused"
    reason = problem or f"they failed their check on worker {wrong[0]}"
    backend.network_note = f"the Triton kernels are not used: {reason}; PyTorch computes the network"
    log.warning(
        "%s, which is slower. `python -m benchmarks.gpu --only checks --out FOLDER` shows all checks",
        backend.network_note,
    )


def _problem(
    model: ModelConfig,
    cells: int,
    symbols: int,
    dtype: torch.dtype,
    device: torch.device,
    optimiser: str | None,
) -> str | None:
    """What is wrong with the kernels; None: nothing."""
    try:
        from trm.training.kernel_checks import of_run

        for check in of_run(model, cells, symbols, dtype, device, optimiser):
            if not check.passed:
                return f"{check.name} is wrong by {check.error:.1e} of its norm (limit {check.limit:.0e})"
    except Exception as error:  # the compiler's, the driver's, or a tile too large for this chip
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return f"one does not run here ({first})"
    return None
