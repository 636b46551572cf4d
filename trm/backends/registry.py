"""Backends by name, and implementations of the network by name, as used in `Backend.implementation`.

To add an implementation, provide the parts of a `trm.model.plain.Implementation` and an entry in LOADERS.
"""

import os

import torch

from trm.backends.base import Backend
from trm.errors import UserError
from trm.model.definition import Architecture, Weights
from trm.model.plain import PLAIN, Implementation, PlainRounds

NAMES = ("cpu", "cuda", "xla")
BACKEND_VARIABLE = "TRM_BACKEND"


def open_backend(name: str = "auto", threads: int | None = None) -> Backend:
    """Open a backend, and join the other workers if RANK and WORLD_SIZE are set.

    `auto` is $TRM_BACKEND if set, else xla on a machine with TPU chips, cuda with a GPU, or cpu.

    Args:
        name: auto, cpu, cuda or xla.
        threads: CPU threads of this process; None: chosen by torch.
    """
    if threads is not None and threads < 1:
        raise UserError(f"--threads: must be at least 1, not {threads}")
    if threads:
        torch.set_num_threads(threads)
    source = "--backend"
    if name == "auto":
        source, name = BACKEND_VARIABLE, os.environ.get(BACKEND_VARIABLE, "auto")
    if name == "auto":
        name, reason = _best()
        if os.environ.get("RANK", "0") == "0":
            print(f"backend {name}: {reason}", flush=True)
    if name == "cpu":
        from trm.backends.cpu.device import CpuBackend

        return CpuBackend()
    if name == "cuda":
        from trm.backends.cuda.device import CudaBackend

        return CudaBackend()
    if name == "xla":
        from trm.backends.tpu.device import XlaBackend

        try:
            return XlaBackend()
        except ImportError as error:
            raise UserError(
                f"the xla backend needs torch_xla, which cannot be imported here ({error}): install "
                "envs/tpu/requirements.lock, or choose another backend with --backend"
            ) from None
    raise UserError(f"{source} {name}: choose one of auto, {', '.join(NAMES)}")


def _best() -> tuple[str, str]:
    """The backend for this machine, and why."""
    from trm.backends.cuda.gpus import why_no_gpu
    from trm.backends.tpu.chips import tpu_wanted

    if tpu_wanted():
        return "xla", "this machine has TPU chips"
    if torch.cuda.is_available():
        return "cuda", "this machine has a GPU"
    return "cpu", why_no_gpu(torch.__version__, torch.version.cuda).partition(": ")[0]


def _fused() -> Implementation:
    """The CPU kernel, where it covers the network; otherwise the plain network."""
    from trm.backends.cpu.choice import products_for
    from trm.backends.cpu.network import KernelRounds

    def rounds(weights: Weights, arch: Architecture) -> PlainRounds:
        products = products_for(weights, arch)
        return PLAIN.rounds(weights, arch) if products is None else KernelRounds(weights, arch, products)

    return Implementation(PLAIN.network, rounds)


def _compiled() -> Implementation:
    from trm.backends.cuda.compiled import CompiledNetwork, CompiledRounds

    return Implementation(CompiledNetwork, CompiledRounds)


def _xla() -> Implementation:
    from trm.backends.tpu.network import XlaNetwork, XlaRounds

    return Implementation(XlaNetwork, XlaRounds)


LOADERS = {"plain": lambda: PLAIN, "fused": _fused, "compiled": _compiled, "xla": _xla}


def load_implementation(name: str) -> Implementation:
    """Import the implementation called `name`; some need torch_xla or a compiler."""
    return LOADERS[name]()
