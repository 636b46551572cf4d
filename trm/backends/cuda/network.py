"""The network for CUDA: the mathematics of `trm.model.definition` with a hand-written backward, on kernels.

Weights are cast once per step. Norms, residuals and the additions between updates take one pass, rounds without
gradient store no activations, and backward recomputes the projection of token mixing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from trm.backends.cuda.layers import Attention, Buffers, Channels, Tokens
from trm.backends.cuda.norm import norm_backward, residual_norm, scale_dtype
from trm.backends.cuda.tiles import architecture_of, table
from trm.model import definition as network
from trm.model.definition import Architecture, Weights
from trm.model.parameters import Layout
from trm.model.plain import PlainNetwork, PlainRounds


class Kept(NamedTuple):
    """Saved for backward of one block: its input, the mixer's output, the block's output, and 1 / rms of both norms."""

    x: Tensor
    y: Tensor
    y_scale: Tensor
    mixer: tuple[Tensor, ...]
    """Activations of the mixing layer."""
    gate_up: Tensor
    """Projection of the channel mixing."""
    out: Tensor
    out_scale: Tensor


class TritonRounds(PlainRounds):
    """Recursion rounds with weights in the forward dtype and float32 gradients, by name; no `grads` for inference."""

    def __init__(self, weights: Weights, arch: Architecture, grads: Weights | None = None):
        super().__init__(weights, arch)
        self._buffers = Buffers()
        tiles = table(architecture_of(next(iter(weights.values())).device))

        def layer(kind: type, first: str, second: str, **more: Any) -> Any:
            own = (grads[first], grads[second]) if grads else ()
            return kind((weights[first], weights[second]), own, self._buffers, tiles, **more)

        self._blocks: list[tuple[Any, Channels]] = []
        for prefix in (f"blocks.{i}." for i in range(arch.layers)):
            if prefix + "token_mlp.down" in weights:
                mixer = layer(Tokens, prefix + "token_mlp.gate_up", prefix + "token_mlp.down")
            else:
                names = prefix + "attention.qkv", prefix + "attention.out"
                mixer = layer(Attention, *names, heads=arch.heads, rope=arch.rope)
            channels = layer(Channels, prefix + "channel_mlp.gate_up", prefix + "channel_mlp.down")
            self._blocks.append((mixer, channels))

    def prepare(self) -> None:
        """Update cached copies after the weights have changed."""
        for mixer, _ in self._blocks:
            mixer.prepare()

    @torch.no_grad()
    def forward(
        self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int, saved: list[Any] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Same as `network.recursion_round`; appends what backward needs to `saved`.

        The results are in buffers, valid until the next call, which may take them as inputs.
        """
        z_H, z_L, x = z_H.contiguous(), z_L.contiguous(), x.contiguous()
        inject = torch.add(z_H, x, out=self._buffers.get("inject", x))
        into = torch.add(z_L, inject, out=self._buffers.get(("into", 0 if saved is not None else None), x))
        for use in range(l_cycles):
            last = use == l_cycles - 1
            z_L, into = self._apply(into, use, "z_L" if last else None, z_H if last else inject, saved)
        z_H, _ = self._apply(into, l_cycles, "z_H", None, saved)
        return z_H, z_L

    def _apply(
        self, x: Tensor, use: int, role: str | None, extra: Tensor | None, saved: list[Any] | None
    ) -> tuple[Tensor, Tensor]:
        """The stack's output, valid with a role or `saved`, and output + extra, valid with `extra`."""
        length, batch, width = x.shape
        rows, columns = (length * batch, width), (length, batch * width)
        records, dtype = [], scale_dtype(x)
        into = x if extra is None else self._buffers.get(("into", use % 2 if saved is None else use + 1), x)
        added = None if extra is None else (extra.view(rows), into.view(rows))
        for i, (mixer, channels) in enumerate(self._blocks):
            place = (use, i) if saved is not None else None
            last = i == len(self._blocks) - 1
            name = role if last else "between"
            inner: tuple[Tensor, ...] = ()
            if isinstance(mixer, Attention):
                inner = (
                    self._buffers.get(("qkv", place), x, length, batch, 3 * width),
                    self._buffers.get(("attended", place), x, length, batch, width),
                )
            y = self._buffers.get(("y", place), x, *rows)
            out = None if saved is None and name is None else self._buffers.get((name, place), x, *rows)
            kept = None
            if saved is not None and out is not None:
                normed = columns[1] if isinstance(mixer, Tokens) else rows[0]
                y_scale = self._buffers.get(("y scale", place), x, normed, dtype=dtype)
                gate_up = self._buffers.get(("gate_up", place), x, rows[0], channels.into.shape[0])
                out_scale = self._buffers.get(("out scale", place), x, rows[0], dtype=dtype)
                kept = Kept(x, y, y_scale, inner, gate_up, out, out_scale)
                records.append(kept)
            if isinstance(mixer, Tokens):
                mixer.forward(x.view(columns), y.view(columns), kept and kept.y_scale)
            else:
                residual_norm(x.view(rows), mixer.forward(x, *inner), y, kept and kept.y_scale)
            mixed = channels.forward(y, kept and kept.gate_up)
            sums = added if last and added else (None, None)
            residual_norm(y, mixed, out, kept and kept.out_scale, *sums)
            x = x if out is None else out.view(length, batch, width)
        if saved is not None:
            saved.append(records)
        return x, into

    @torch.no_grad()
    def backward(self, grad: Tensor, saved: list[Any]) -> Tensor:
        """Gradient of x, given that of z_H; accumulates weight gradients."""
        # through the update of z_H, which does not read x, and then those of z_L
        grad = self._stack_backward(grad.contiguous(), saved.pop())
        grad = self._stack_backward(grad, saved.pop())
        total = grad.to(torch.promote_types(grad.dtype, torch.float32), copy=True)
        while saved:
            grad = self._stack_backward(grad, saved.pop())
            total.add_(grad)
        return total.to(grad.dtype)

    def _stack_backward(self, grad: Tensor, records: list[Kept]) -> Tensor:
        length, batch, width = grad.shape
        rows, columns = (length * batch, width), (length, batch * width)
        total = self._buffers.get("total", grad, *rows)
        for (mixer, channels), kept in zip(self._blocks[::-1], records[::-1]):
            norm_backward(grad.view(rows), kept.out, kept.out_scale, total)
            grad = channels.backward(total, kept.y, kept.gate_up)
            if isinstance(mixer, Tokens):
                shapes = grad.view(columns), kept.x.view(columns), kept.y.view(columns)
                grad = mixer.backward(*shapes, kept.y_scale)
            else:
                norm_backward(grad, kept.y, kept.y_scale, total)
                grad = mixer.backward(total, kept.x, *kept.mixer)
            grad = grad.view(length, batch, width)
        return grad


class LastRound(torch.autograd.Function):
    """The round with gradient: differentiable in x; weight gradients are accumulated as a side effect."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, z_H: Tensor, z_L: Tensor, rounds: TritonRounds, l_cycles: int
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


class TritonNetwork(PlainNetwork):
    """Same as `PlainNetwork`, from Triton kernels, for a GPU with bfloat16 or float16 products."""

    def __init__(self, layout: Layout, params: Tensor, grads: Tensor, arch: Architecture):
        super().__init__(layout, params, grads, arch)
        cast = params.dtype != arch.dtype
        self._work = torch.empty_like(params, dtype=arch.dtype) if cast else params
        self.rounds = TritonRounds(layout.views(self._work), arch, layout.views(grads))

    def prepare(self) -> None:
        """Cast the current weights and zero the gradients."""
        super().prepare()
        if self._work is not self._params:
            self._work.copy_(self._params)
        self.rounds.prepare()

    def __call__(
        self, z_H: Tensor, z_L: Tensor, inputs: Tensor, puzzle: Tensor | None, h_cycles: int, l_cycles: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = network.embed(inputs, puzzle, self.weights, self._arch, network.one_hot_lookup)
        with torch.no_grad():
            for _ in range(h_cycles - 1):
                z_H, z_L = self.rounds.forward(z_H, z_L, x, l_cycles)
        z_H, z_L = LastRound.apply(x, z_H, z_L, self.rounds, l_cycles)
        return (z_H, z_L, *network.heads(z_H, self.weights, self._arch))
