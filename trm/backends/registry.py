"""Backends by name, and implementations of the network by name, as used in `Backend.network` and `placement.network`.

To add an implementation, provide the parts of a `trm.model.implementation.Implementation` and an entry in LOADERS.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trm.backends.base import Backend
from trm.errors import UserError
from trm.model.definition import Architecture, Weights
from trm.model.implementation import Implementation, Network, Rounds
from trm.model.parameters import Layout
from trm.model.plain import PLAIN

if TYPE_CHECKING:
    from trm.backends.cpu.network import CompiledRounds

NAMES = ("cpu", "cuda", "xla")
BACKEND_VARIABLE = "TRM_BACKEND"


def open_backend(name: str = "auto", threads: int | None = None) -> Backend:
    """Open a backend, and join the other workers if RANK and WORLD_SIZE are set.

    `auto` is $TRM_BACKEND if set, else xla on a machine with TPU chips, cuda with a GPU, or cpu.

    Args:
        name: auto, cpu, cuda or xla.
        threads: CPU threads of this process; None: chosen by torch.
    """
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
    from trm.backends.cuda.visible import why_no_gpu
    from trm.backends.tpu.chips import tpu_wanted

    if tpu_wanted():
        return "xla", "this machine has TPU chips"
    if torch.cuda.is_available():
        return "cuda", "this machine has a GPU"
    return "cpu", why_no_gpu(torch.__version__, torch.version.cuda).partition(": ")[0]


def _fused() -> Implementation:
    """Compiled passes on a CPU with numba, in a dtype that they support; otherwise the plain network."""

    def network(layout: Layout, params: Tensor, grads: Tensor, arch: Architecture) -> Network:
        rounds = compiled_rounds(params.device, arch.dtype)
        if rounds is None:
            return PLAIN.network(layout, params, grads, arch)
        from trm.model.fused import FusedNetwork

        return FusedNetwork(layout, params, grads, arch, rounds)

    def inference_rounds(weights: Weights, arch: Architecture) -> Rounds:
        rounds = compiled_rounds(next(iter(weights.values())).device, arch.dtype)
        return PLAIN.rounds(weights, arch) if rounds is None else rounds(weights, None, arch)

    return Implementation(network, inference_rounds)


def _triton() -> Implementation:
    from trm.backends.cuda.network import TritonNetwork, TritonRounds

    return Implementation(TritonNetwork, lambda weights, arch: TritonRounds(weights, None, arch))


def _xla() -> Implementation:
    from trm.backends.tpu.network import XlaNetwork, XlaRounds

    return Implementation(XlaNetwork, XlaRounds)


LOADERS = {"plain": lambda: PLAIN, "fused": _fused, "triton": _triton, "xla": _xla}


def load_implementation(name: str) -> Implementation:
    """Import the implementation called `name`; some need triton or torch_xla."""
    return LOADERS[name]()


def compiled_rounds(device: torch.device, dtype: torch.dtype) -> type[CompiledRounds] | None:
    """The compiled passes, or None if this machine or dtype does not support them or TRM_CPU_KERNELS is 0."""
    if device.type == "cpu" and os.environ.get("TRM_CPU_KERNELS") != "0" and find_spec("numba"):
        from trm.backends.cpu import launch
        from trm.backends.cpu.network import CompiledRounds

        if launch.usable(dtype):
            return CompiledRounds
    return None
