"""What an implementation of the network provides; all compute `trm.model.definition`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from trm.model.definition import Architecture, Weights
from trm.model.parameters import Layout


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


@runtime_checkable
class Steps(Protocol):
    """Rounds that compute whole supervision steps."""

    def step(
        self, z_H: Tensor, z_L: Tensor, x: Tensor, h_cycles: int, l_cycles: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`h_cycles` rounds on embedded inputs x [L, B, D], then the heads: z_H, z_L, logits [S, B, V], halt [B]."""


class Implementation(NamedTuple):
    """One way to compute the network."""

    network: Callable[[Layout, Tensor, Tensor, Architecture], Network]
    rounds: Callable[[Weights, Architecture], Rounds]
