"""Backends: what differs between devices, behind the interface `trm.devices.base.Backend`."""

from __future__ import annotations

import os

from trm.devices.base import Backend
from trm.errors import UserError

NAMES = ("cpu", "cuda", "xla")
BACKEND_VARIABLE = "TRM_BACKEND"


def open_backend(name: str = "auto", threads: int | None = None) -> Backend:
    """Open a backend, and join the other workers if RANK and WORLD_SIZE are set.

    `auto` is $TRM_BACKEND if set, else xla on a machine with TPU chips, cuda with a GPU, or cpu.

    Args:
        name: auto, cpu, cuda or xla.
        threads: CPU threads of this process; None: chosen by torch.
    """
    import torch

    if threads:
        torch.set_num_threads(threads)
    source = "--backend"
    if name == "auto":
        source, name = BACKEND_VARIABLE, os.environ.get(BACKEND_VARIABLE, "auto")
    if name == "auto":
        from trm.devices.chips import tpu_wanted

        name = "xla" if tpu_wanted() else "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        from trm.devices.cpu import CpuBackend

        return CpuBackend()
    if name == "cuda":
        from trm.devices.cuda import CudaBackend

        return CudaBackend()
    if name == "xla":
        from trm.devices.xla import XlaBackend

        try:
            return XlaBackend()
        except ImportError as error:
            raise UserError(
                f"the xla backend needs torch_xla, which cannot be imported here ({error}): install "
                "envs/tpu/requirements.lock, or choose another backend with --backend"
            ) from None
    raise UserError(f"{source} {name}: choose one of auto, {', '.join(NAMES)}")
