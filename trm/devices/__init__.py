"""What differs between devices, behind one class: see `trm.devices.base.Backend`."""

from __future__ import annotations

import os

from trm.devices.base import Backend
from trm.errors import UserError

NAMES = ("cpu", "cuda", "xla")
BACKEND_VARIABLE = "TRM_BACKEND"


def open_backend(name: str = "auto", threads: int | None = None) -> Backend:
    """Open the backend called `name` and join the other workers if RANK and WORLD_SIZE are set.

    `auto` takes what $TRM_BACKEND names, else xla on a machine with TPU chips, cuda where there is a GPU, else cpu.

    Args:
        name: auto, cpu, cuda or xla.
        threads: CPU threads of this process; None leaves the choice to torch.
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
    raise UserError(f"{source} {name}: choose auto, {', '.join(NAMES)}")
