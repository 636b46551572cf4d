"""The plain network through torch.compile: one recursion round is one compiled function of static shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trm.model import definition as network
from trm.model.definition import Architecture, Weights
from trm.model.parameters import Layout
from trm.model.plain import PlainNetwork, PlainRounds

OPTIONS: dict[str, Any] = {}
"""Further arguments of torch.compile; a test sets another compiler."""


def compiled_round() -> Callable[..., tuple[Tensor, Tensor]]:
    """`definition.recursion_round`, compiled at its first call of each kind."""
    return torch.compile(network.recursion_round, dynamic=False, **OPTIONS)


class CompiledNetwork(PlainNetwork):
    """Same as `PlainNetwork`."""

    def __init__(self, layout: Layout, params: Tensor, grads: Tensor, arch: Architecture):
        super().__init__(layout, params, grads, arch)
        self._round = compiled_round()

    def __call__(
        self, z_H: Tensor, z_L: Tensor, inputs: Tensor, puzzle: Tensor | None, h_cycles: int, l_cycles: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Same as `definition.supervision_step`."""
        x = network.embed(inputs, puzzle, self.weights, self._arch)
        with torch.no_grad():
            for _ in range(h_cycles - 1):
                z_H, z_L = self._round(z_H, z_L, x, self.weights, self._arch, l_cycles)
        z_H, z_L = self._round(z_H, z_L, x, self.weights, self._arch, l_cycles)
        return (z_H, z_L, *network.heads(z_H, self.weights, self._arch))


class CompiledRounds(PlainRounds):
    """Same as `PlainRounds`."""

    def __init__(self, weights: Weights, arch: Architecture):
        super().__init__(weights, arch)
        self._round = compiled_round()

    def forward(self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int) -> tuple[Tensor, Tensor]:
        """Same as `definition.recursion_round`."""
        return self._round(z_H, z_L, x, self._weights, self._arch, l_cycles)
