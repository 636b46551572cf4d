"""The network for CUDA: the mathematics of `trm.model.definition` with a hand-written backward, on kernels.

Norms, residuals and the additions between updates take one pass, rounds without gradient store no activations, and
backward recomputes the projection of token mixing.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from trm.backends.cuda.layers import Attention, Channels, Layer, Tokens
from trm.backends.cuda.norm import norm_backward, residual_norm, scale_dtype
from trm.backends.cuda.tiles import Table, architecture_of, table
from trm.model import fused
from trm.model.definition import Architecture, Weights, one_hot_lookup
from trm.model.parameters import Layout


class TritonRounds(fused.Rounds):
    """Same as `fused.Rounds`, from Triton kernels."""

    def __init__(
        self,
        weights: Weights,
        grads: Weights | None,
        arch: Architecture,
        choices: Table | None = None,
    ):
        self.tiles = choices or table(architecture_of(next(iter(weights.values())).device))
        super().__init__(weights, grads, arch)

    def _layer(self, kind: str, weights: tuple[Tensor, Tensor], grads: tuple[Tensor, ...]) -> Layer:
        parts = weights, grads, self._buffers, self.tiles
        if kind == "attention":
            return Attention(*parts, heads=self._arch.heads, rope=self._arch.rope)
        return (Tokens if kind == "tokens" else Channels)(*parts)

    def prepare(self) -> None:
        """Update cached copies after the weights have changed."""
        for mixer, _ in self._blocks:
            mixer.prepare()

    @torch.no_grad()
    def forward(
        self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int, saved: list[Any] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Same as `network.recursion_round`; appends what backward needs to `saved`."""
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
                kept = fused.Kept(x, y, y_scale, inner, gate_up, out, out_scale)
                records.append(kept)
            if isinstance(mixer, Tokens):
                mixer.forward(x.view(columns), y.view(columns), kept and kept.y_scale)
            else:
                residual_norm(x.view(rows), mixer.forward(x, *inner), 1, y, kept and kept.y_scale)
            mixed = channels.forward(y, kept and kept.gate_up)
            sums = added if last and added else (None, None)
            residual_norm(y, mixed, 1, out, kept and kept.out_scale, *sums)
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

    def _stack_backward(self, grad: Tensor, records: list[fused.Kept]) -> Tensor:
        length, batch, width = grad.shape
        rows, columns = (length * batch, width), (length, batch * width)
        for (mixer, channels), kept in zip(self._blocks[::-1], records[::-1]):
            total = norm_backward(
                grad.view(rows), kept.out, kept.out_scale, 1, self._buffers.get("total", grad, *rows)
            )
            grad = channels.backward(total, kept.y, kept.gate_up)
            if isinstance(mixer, Tokens):
                shapes = grad.view(columns), kept.x.view(columns), kept.y.view(columns)
                grad = mixer.backward(*shapes, kept.y_scale)
            else:
                total = norm_backward(grad, kept.y, kept.y_scale, 1, self._buffers.get("total", grad, *rows))
                grad = mixer.backward(total, kept.x, *kept.mixer)
            grad = grad.view(length, batch, width)
        return grad


class TritonNetwork(fused.FusedNetwork):
    """`FusedNetwork` from Triton kernels, for a GPU with bfloat16 or float16 products.

    `choices`: see `trm.backends.cuda.tiles`.
    """

    lookup = staticmethod(one_hot_lookup)

    def __init__(
        self, layout: Layout, params: Tensor, grads: Tensor, arch: Architecture, choices: Table | None = None
    ):
        super().__init__(layout, params, grads, arch, partial(TritonRounds, choices=choices))
