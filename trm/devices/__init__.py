"""What differs between devices, behind one class: see `trm.devices.base.Backend`."""

from __future__ import annotations

from trm.devices.base import Backend
from trm.errors import UserError

NAMES = ("cpu", "cuda", "xla")


def open_backend(name: str = "auto", threads: int | None = None) -> Backend:
    """The backend called `name`; `auto`: cuda where a GPU is, xla where PJRT_DEVICE names a TPU, else cpu.

    `threads`: CPU threads of this process (None: torch's choice). Joins the workers when RANK and WORLD_SIZE are set.
    """
    import os

    import torch

    if threads:
        torch.set_num_threads(threads)
    if name == "auto":
        tpu = os.environ.get("PJRT_DEVICE", "").upper() == "TPU"
        name = "xla" if tpu else "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        from trm.devices.cpu import CpuBackend

        return CpuBackend()
    if name == "cuda":
        from trm.devices.cuda import CudaBackend

        return CudaBackend()
    if name == "xla":
        try:
            from trm.devices.xla import XlaBackend

            return XlaBackend()
        except ImportError as error:
            raise UserError(
                f"--backend xla needs torch_xla, which cannot be imported here: {error}"
            ) from None
    raise UserError(f"--backend {name}: known are auto, {', '.join(NAMES)}")
