"""What the networks for CPU and CUDA share: buffers, and recursion rounds with a hand-written backward.

Weights are cast once per step, the gradients of all uses of a weight are summed in float32, and activations are in
buffers that are reused from step to step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trm.model import definition as network
from trm.model.definition import Architecture, Weights
from trm.model.parameters import Layout
from trm.model.plain import PlainNetwork


class Buffers:
    """Scratch tensors by key and shape, reused because allocating memory costs more than writing to it."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[Any, ...], Tensor] = {}

    def get(self, key: Any, like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor like `like`, with its shape and dtype unless others are given, and the contents of its last use."""
        shape = shape or tuple(like.shape)
        tensor = self._tensors.get((key, *shape))
        if tensor is None:
            tensor = self._tensors[key, *shape] = like.new_empty(shape, dtype=dtype)
        return tensor


def add_product(total: Tensor, a: Tensor, b: Tensor, buffers: Buffers) -> None:
    """total += a @ b, accumulated in the dtype of `total`."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif a.is_cuda:  # cuBLAS adds up in float32, and need not round the sum to 16 bits
        total.add_(torch.mm(a, b, out_dtype=total.dtype))
    else:
        total.add_(torch.mm(a, b, out=buffers.get("product", a, a.shape[0], b.shape[1])))


class FusedNetwork:
    """Same interface as `plain.PlainNetwork`; `rounds` computes the recursion rounds."""

    lookup: Callable[[Tensor, Tensor], Tensor] = staticmethod(F.embedding)
    """The embedding lookup."""

    def __init__(
        self,
        layout: Layout,
        params: Tensor,
        grads: Tensor,
        arch: Architecture,
        rounds: Callable[[Weights, Weights, Architecture], Rounds],
    ):
        self._plain = PlainNetwork(layout, params, grads, arch)
        self._params, self._arch = params, arch
        cast = params.dtype != arch.dtype
        self._work = torch.empty_like(params, dtype=arch.dtype) if cast else params
        self.rounds = rounds(layout.views(self._work), layout.views(grads), arch)

    def prepare(self) -> None:
        """Cast the current weights and zero the gradients."""
        self._plain.prepare()
        if self._work is not self._params:
            self._work.copy_(self._params)
        self.rounds.prepare()

    def __call__(
        self, z_H: Tensor, z_L: Tensor, inputs: Tensor, puzzle: Tensor | None, h_cycles: int, l_cycles: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Same as `network.supervision_step`."""
        x = network.embed(inputs, puzzle, self._plain.weights, self._arch, self.lookup)
        with torch.no_grad():
            for _ in range(h_cycles - 1):
                z_H, z_L = self.rounds.forward(z_H, z_L, x, l_cycles)
        z_H, z_L = LastRound.apply(x, z_H, z_L, self.rounds, l_cycles)
        return (z_H, z_L, *network.heads(z_H, self._plain.weights, self._arch))


class LastRound(torch.autograd.Function):
    """The round with gradient: differentiable in x; weight gradients are accumulated as a side effect."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, z_H: Tensor, z_L: Tensor, rounds: Rounds, l_cycles: int
    ) -> tuple[Tensor, Tensor]:
        ctx.rounds, ctx.saved = rounds, []
        ctx.set_materialize_grads(False)
        z_H, z_L = rounds.forward(z_H, z_L, x, l_cycles, ctx.saved)
        z_H, z_L = z_H.clone(), z_L.clone()  # results must not alias buffers
        ctx.mark_non_differentiable(z_L)
        return z_H, z_L

    @staticmethod
    def backward(ctx: Any, grad_H: Tensor, grad_L: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.rounds.backward(grad_H, ctx.saved), None, None, None, None


class Kept(NamedTuple):
    """Saved for backward of one block: its input, the mixer's output, the block's output, and 1 / rms of both norms."""

    x: Tensor
    y: Tensor
    y_scale: Tensor
    mixer: Any
    """Activations of the mixing layer."""
    gate_up: Tensor
    """Projection of the channel mixing."""
    out: Tensor
    out_scale: Tensor


class Rounds(ABC):
    """Recursion rounds with weights in the forward dtype and float32 gradients, by name; no `grads` for inference."""

    multiple = 1

    def __init__(self, weights: Weights, grads: Weights | None, arch: Architecture):
        self._arch, self._buffers = arch, Buffers()

        def layer(kind: str, first: str, second: str) -> Any:
            return self._layer(
                kind, (weights[first], weights[second]), (grads[first], grads[second]) if grads else ()
            )

        self._blocks: list[tuple[Any, Any]] = []
        for prefix in (f"blocks.{i}." for i in range(arch.layers)):
            if prefix + "token_mlp.down" in weights:
                mixer = layer("tokens", prefix + "token_mlp.gate_up", prefix + "token_mlp.down")
            else:
                mixer = layer("attention", prefix + "attention.qkv", prefix + "attention.out")
            channels = layer("channels", prefix + "channel_mlp.gate_up", prefix + "channel_mlp.down")
            self._blocks.append((mixer, channels))

    @abstractmethod
    def _layer(self, kind: str, weights: tuple[Tensor, Tensor], grads: tuple[Tensor, ...]) -> Any:
        """A mixing layer; `kind`: tokens, attention or channels."""

    @abstractmethod
    def forward(
        self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int, saved: list[Any] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Same as `network.recursion_round`; appends what backward needs to `saved`.

        The results are in buffers, valid until the next call, which may take them as inputs.
        """

    @abstractmethod
    def backward(self, grad: Tensor, saved: list[Any]) -> Tensor:
        """Gradient of x, given that of z_H; accumulates weight gradients."""

    def prepare(self) -> None:  # noqa: B027 (optional)
        """Called after the weights have changed."""

    def replicate(self, tensor: Tensor) -> Tensor:
        """The tensor itself: there is one device."""
        return tensor
