"""The reference implementation: `trm.model.definition` through autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from trm.model import definition as network
from trm.model.definition import Architecture
from trm.model.implementation import Implementation
from trm.model.parameters import Layout


class PlainNetwork:
    """Runs `network.supervision_step` on the flat buffer `params`; gradients accumulate in the float32 buffer `grads`.

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
        """Same as `network.supervision_step`."""
        return network.supervision_step(
            z_H, z_L, inputs, puzzle, self.weights, self._arch, h_cycles, l_cycles
        )


class PlainRounds:
    """Recursion rounds without gradients."""

    multiple = 1

    def __init__(self, weights: network.Weights, arch: Architecture):
        self._weights, self._arch = weights, arch

    def forward(self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int) -> tuple[Tensor, Tensor]:
        """Same as `network.recursion_round`."""
        return network.recursion_round(z_H, z_L, x, self._weights, self._arch, l_cycles)

    def replicate(self, tensor: Tensor) -> Tensor:
        """The tensor itself: there is one device."""
        return tensor


PLAIN = Implementation(PlainNetwork, PlainRounds)
