"""The reference implementation, `trm.model.definition` through autograd, and what every implementation provides."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trm.model import definition
from trm.model.definition import Architecture, Weights
from trm.model.parameters import Layout


class PlainNetwork:
    """Runs `definition.supervision_step` on the flat buffer `params`; gradients accumulate in the float32 `grads`.

    Call `prepare` once per step, then for each micro-batch the network and backward.
    """

    def __init__(self, layout: Layout, params: Tensor, grads: Tensor, arch: Architecture):
        self._arch, self._params, self._grads = arch, params, grads
        # the gradients of all uses are summed in the leaf's dtype: float32, even for bfloat16 weights
        self._leaf = params if params.dtype == grads.dtype else torch.empty_like(grads)
        self.weights: dict[str, Tensor] = {}
        for name, view in layout.views(self._leaf).items():
            self.weights[name] = view.detach().requires_grad_()
            self.weights[name].grad = layout.views(grads)[name]

    def prepare(self) -> None:
        """Read the current weights and zero the gradients."""
        if self._leaf is not self._params:
            self._leaf.copy_(self._params)
        self._grads.zero_()

    def __call__(
        self, z_H: Tensor, z_L: Tensor, inputs: Tensor, puzzle: Tensor | None, h_cycles: int, l_cycles: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One supervision step (`definition.supervision_step`); backward accumulates into the gradient buffer."""
        return definition.supervision_step(
            z_H, z_L, inputs, puzzle, self.weights, self._arch, h_cycles, l_cycles
        )


class PlainRounds:
    """Recursion rounds for inference, with weights in the forward dtype."""

    multiple = 1
    """Batches are sharded over all devices if their number of rows is a multiple of this."""

    def __init__(self, weights: Weights, arch: Architecture):
        self._weights, self._arch = weights, arch

    def forward(self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int) -> tuple[Tensor, Tensor]:
        """`l_cycles` updates of z_L, then one of z_H (`definition.recursion_round`)."""
        return definition.recursion_round(z_H, z_L, x, self._weights, self._arch, l_cycles)

    def step(
        self, z_H: Tensor, z_L: Tensor, x: Tensor, h_cycles: int, l_cycles: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`h_cycles` rounds on embedded inputs x [L, B, D], then the heads: z_H, z_L, logits [S, B, V], halt [B]."""
        for _ in range(h_cycles):
            z_H, z_L = self.forward(z_H, z_L, x, l_cycles)
        return (z_H, z_L, *definition.heads(z_H, self._weights, self._arch))


class Implementation(NamedTuple):
    """One way to compute `trm.model.definition`: the interfaces of `PlainNetwork` and `PlainRounds`."""

    network: Callable[[Layout, Tensor, Tensor, Architecture], Any]
    rounds: Callable[[Weights, Architecture], PlainRounds]


PLAIN = Implementation(PlainNetwork, PlainRounds)
