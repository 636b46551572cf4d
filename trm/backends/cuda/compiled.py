"""The plain network through torch.compile: one recursion round is one compiled function of static shapes."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from trm.model import definition
from trm.model.definition import Architecture, Weights
from trm.model.parameters import Layout
from trm.model.plain import PlainNetwork, PlainRounds

OPTIONS: dict[str, Any] = {}
"""Further arguments of torch.compile; tests set another compiler."""
KINDS = 64
"""Programs of one function, by shape and by whether gradients are needed; beyond them torch would stop compiling."""
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def compiled(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, compiled for each shape at its first call."""
    programs: list[Callable[Arguments, Result]] = []

    @wraps(function)
    def call(*args: Arguments.args, **more: Arguments.kwargs) -> Result:
        if not programs:
            torch._dynamo.config.recompile_limit = max(KINDS, torch._dynamo.config.recompile_limit)
            programs.append(torch.compile(function, dynamic=False, **OPTIONS))
        return programs[0](*args, **more)

    return call


class Rounds:
    """`definition.recursion_round`, compiled, with the tables of rotary embeddings as inputs.

    Computed inside, they would be fused into the rotation: a cosine and a sine for every element, a quarter of an
    evaluation on an H200 (lab/2026-11.md).
    """

    def __init__(self, weights: Weights, arch: Architecture):
        self._weights, self._arch = dict(weights), arch
        self._call = compiled(definition.recursion_round)

    def __call__(self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int) -> tuple[Tensor, Tensor]:
        if self._arch.rope and "rope.cos" not in self._weights:
            length, _, width = x.shape
            tables = definition.rope_tables(length, width // self._arch.heads, x.device)
            self._weights |= zip(("rope.cos", "rope.sin"), tables, strict=True)
        return self._call(z_H, z_L, x, self._weights, self._arch, l_cycles)


class CompiledNetwork(PlainNetwork):
    """The network with its rounds compiled, for training."""

    def __init__(self, layout: Layout, params: Tensor, grads: Tensor, arch: Architecture):
        super().__init__(layout, params, grads, arch)
        self._round = Rounds(self.weights, arch)

    def __call__(
        self, z_H: Tensor, z_L: Tensor, inputs: Tensor, puzzle: Tensor | None, h_cycles: int, l_cycles: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = definition.embed(inputs, puzzle, self.weights, self._arch)
        with torch.no_grad():
            for _ in range(h_cycles - 1):
                z_H, z_L = self._round(z_H, z_L, x, l_cycles)
        z_H, z_L = self._round(z_H, z_L, x, l_cycles)
        return (z_H, z_L, *definition.heads(z_H, self.weights, self._arch))


class CompiledRounds(PlainRounds):
    """The rounds compiled, without gradient."""

    def __init__(self, weights: Weights, arch: Architecture):
        super().__init__(weights, arch)
        self._round = Rounds(weights, arch)

    def forward(self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int) -> tuple[Tensor, Tensor]:
        return self._round(z_H, z_L, x, l_cycles)
