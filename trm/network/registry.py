"""Implementations of the network by name, as used in `Backend.network` and `placement.network`.

All compute `trm.network.definition`. To add one, provide the parts of an `Implementation` and an entry in LOADERS.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from trm.network.definition import Architecture, Weights
from trm.network.parameters import Layout

if TYPE_CHECKING:
    from trm.network.cpu.network import CompiledRounds


class Network(Protocol):
    """A trainable network over flat buffers of weights and float32 gradients."""

    def prepare(self) -> None:
        """Read the current weights and zero the gradients; called once per step."""

    def __call__(
        self, z_H: Tensor, z_L: Tensor, inputs: Tensor, puzzle: Tensor | None, h_cycles: int, l_cycles: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Same as `definition.supervision_step`; backward accumulates into the gradient buffer."""


class Rounds(Protocol):
    """Recursion rounds for inference, with weights in the forward dtype."""

    multiple: int
    """Batches are sharded over all devices if their number of rows is a multiple of this."""

    def forward(self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int) -> tuple[Tensor, Tensor]:
        """Same as `definition.recursion_round`."""

    def replicate(self, tensor: Tensor) -> Tensor:
        """All-gather a tensor that is sharded over its rows, so that the host can read it."""


class Implementation(NamedTuple):
    """One way to compute the network."""

    network: Callable[[Layout, Tensor, Tensor, Architecture], Network]
    rounds: Callable[[Weights, Architecture], Rounds]


def _plain() -> Implementation:
    from trm.network.eager.plain import PlainNetwork, PlainRounds

    return Implementation(PlainNetwork, PlainRounds)


def _fused() -> Implementation:
    """Compiled passes on a CPU with numba, in a dtype that they support; otherwise the plain network."""
    plain = _plain()

    def network(layout: Layout, params: Tensor, grads: Tensor, arch: Architecture) -> Network:
        rounds = compiled_rounds(params.device, arch.dtype)
        if rounds is None:
            return plain.network(layout, params, grads, arch)
        from trm.network.fused import FusedNetwork

        return FusedNetwork(layout, params, grads, arch, rounds)

    def inference_rounds(weights: Weights, arch: Architecture) -> Rounds:
        rounds = compiled_rounds(next(iter(weights.values())).device, arch.dtype)
        return plain.rounds(weights, arch) if rounds is None else rounds(weights, None, arch)

    return Implementation(network, inference_rounds)


def _triton() -> Implementation:
    from trm.network.cuda.network import TritonNetwork, TritonRounds

    return Implementation(TritonNetwork, lambda weights, arch: TritonRounds(weights, None, arch))


def _xla() -> Implementation:
    from trm.network.tpu.network import XlaNetwork, XlaRounds

    return Implementation(XlaNetwork, XlaRounds)


LOADERS = {"plain": _plain, "fused": _fused, "triton": _triton, "xla": _xla}


def load_implementation(name: str) -> Implementation:
    """Import the implementation called `name`; some need triton or torch_xla."""
    return LOADERS[name]()


def compiled_rounds(device: torch.device, dtype: torch.dtype) -> type[CompiledRounds] | None:
    """The compiled passes, or None if this machine or dtype does not support them or TRM_CPU_KERNELS is 0."""
    if device.type == "cpu" and os.environ.get("TRM_CPU_KERNELS") != "0" and find_spec("numba"):
        from trm.network.cpu import launch
        from trm.network.cpu.network import CompiledRounds

        if launch.usable(dtype):
            return CompiledRounds
    return None
