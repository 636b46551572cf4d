"""The implementations of the network by name: what `Backend.network` and `placement.network` refer to.

All compute `trm.network.definition`. A new one is a module with the parts of `Implementation` and an entry in LOADERS.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import Tensor

from trm.network.definition import Architecture, Weights
from trm.network.losses import Answer, judge
from trm.network.parameters import Layout

if TYPE_CHECKING:
    from trm.network.eager import fused


class Network(Protocol):
    """A network to train, made from (layout, params, grads, arch): flat buffers of weights and float32 gradients."""

    def prepare(self) -> None:
        """Take the weights as they are now and zero the gradients; called once a step."""

    def __call__(
        self, z_H: Tensor, z_L: Tensor, inputs: Tensor, puzzle: Tensor | None, h_cycles: int, l_cycles: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As `definition.supervision_step`; backward adds to the gradients."""


class Rounds(Protocol):
    """Recursion rounds without gradients, made from (weights in the forward dtype, arch)."""

    multiple: int
    """Batches whose rows are a multiple of this are shared among all devices."""

    def forward(self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int) -> tuple[Tensor, Tensor]:
        """As `definition.recursion_round`."""

    def whole(self, tensor: Tensor) -> Tensor:
        """A tensor whose rows are shared among devices, complete on each, for the host to fetch."""


class Implementation(NamedTuple):
    """One way to compute the network."""

    network: Callable[[Layout, Tensor, Tensor, Architecture], Network]
    rounds: Callable[[Weights, Architecture], Rounds]
    judge: Callable[[Tensor, Tensor, int], Answer] = judge
    """The loss head."""
    optimisers: Mapping[str, Callable[..., None]] = {}
    """Optimiser steps of its own, by name; for the others the step of `trm.training.optim` is used."""


def _plain() -> Implementation:
    from trm.network.eager.plain import PlainNetwork, PlainRounds

    return Implementation(PlainNetwork, PlainRounds)


def _fused() -> Implementation:
    from trm.network.eager.fused import FusedNetwork

    return Implementation(
        partial(FusedNetwork, rounds=fused_rounds), lambda weights, arch: fused_rounds(weights, None, arch)
    )


def _triton() -> Implementation:
    from trm.network.cuda import loss, optimizer
    from trm.network.cuda.network import TritonNetwork, TritonRounds

    return Implementation(
        TritonNetwork,
        lambda weights, arch: TritonRounds(weights, None, arch),
        loss.judge,
        dict.fromkeys(optimizer.KINDS, optimizer.update),
    )


def _xla() -> Implementation:
    from trm.network.tpu.network import XlaNetwork, XlaRounds

    return Implementation(XlaNetwork, XlaRounds)


LOADERS = {"plain": _plain, "fused": _fused, "triton": _triton, "xla": _xla}


def implementation(name: str) -> Implementation:
    """The implementation called `name`; imported only now, as some need triton or torch_xla."""
    return LOADERS[name]()


def fused_rounds(weights: Weights, grads: Weights | None, arch: Architecture) -> fused.Rounds:
    """Compiled passes on a CPU with numba and in a dtype that they support; otherwise torch's operations.

    TRM_CPU_KERNELS=0 turns the compiled passes off.
    """
    device = next(iter(weights.values())).device
    if device.type == "cpu" and os.environ.get("TRM_CPU_KERNELS") != "0" and find_spec("numba"):
        from trm.network.cpu import launch
        from trm.network.cpu.network import CompiledRounds

        if launch.usable(arch.dtype):
            return CompiledRounds(weights, grads, arch)
    from trm.network.eager import fused

    return fused.Rounds(weights, grads, arch)
