"""The recursion rounds for CPUs.

SiLU and product take one pass, residual and norm another, forward and backward; attention is batched matrix products
with passes for softmax and rotary embeddings.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trm.backends.cpu.attention import Attention
from trm.backends.cpu.launch import run
from trm.backends.cpu.layers import Layer, SwiGLU
from trm.model import fused


class CompiledRounds(fused.Rounds):
    """Same as `fused.Rounds`, with compiled passes."""

    def _layer(self, kind: str, weights: tuple[Tensor, Tensor], grads: tuple[Tensor, ...]) -> Layer:
        if kind == "attention":
            return Attention(weights, grads, self._buffers, heads=self._arch.heads, rope=self._arch.rope)
        return SwiGLU(weights, grads, self._buffers, tokens=kind == "tokens")

    @torch.no_grad()
    def forward(
        self, z_H: Tensor, z_L: Tensor, x: Tensor, l_cycles: int, saved: list[Any] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Same as `network.recursion_round`; appends what backward needs to `saved`."""
        buffers = self._buffers
        inject = torch.add(z_H, x, out=buffers.get("inject", x))
        for use in range(l_cycles):
            key = "into z_L", None if saved is None else use
            z_L = self._stack(torch.add(z_L, inject, out=buffers.get(key, x)), use, "z_L", saved)
        into = torch.add(z_H, z_L, out=buffers.get(("into z_H", saved is None), x))
        return self._stack(into, l_cycles, "z_H", saved), z_L

    def _stack(self, x_LBD: Tensor, use: int, role: str, saved: list[Any] | None) -> Tensor:
        # without backward, all layers and uses share one set of buffers
        records = []
        length, batch, width = x_LBD.shape
        for i, (mixer, channels) in enumerate(self._blocks):
            place = (use, i) if saved is not None else None
            last = role if i == len(self._blocks) - 1 else "between"
            flat = x_LBD.view(length if mixer.tokens else length * batch, -1)
            inner = mixer.kept(flat, length, place)
            y, y_scale = mixer.forward(flat, inner, ("y", place))
            flat = y.view(length * batch, width)
            gate_up = channels.kept(flat, length, place)
            out, out_scale = channels.forward(flat, gate_up, (last, place))
            if saved is not None:
                records.append(fused.Kept(x_LBD, y, y_scale, inner, gate_up, out, out_scale))
            x_LBD = out.view(length, batch, width)
        if saved is not None:
            saved.append(records)
        return x_LBD

    @torch.no_grad()
    def backward(self, grad: Tensor, saved: list[Any]) -> Tensor:
        """Gradient of x, given that of z_H; accumulates weight gradients."""
        nothing = self._buffers.get("nothing", grad).zero_()
        grads = self._blocks_backward((grad.contiguous(), nothing), saved.pop())
        total = self._buffers.get("total", grad, dtype=torch.float32).zero_()
        while saved:
            grads = self._blocks_backward(grads, saved.pop())
            for part in grads:
                run("accumulate", part, len(total), total, part, total[0].numel())
        return total.to(grad.dtype)

    def _blocks_backward(
        self, grads: tuple[Tensor, Tensor], records: list[fused.Kept]
    ) -> tuple[Tensor, Tensor]:
        """Gradient of the input as two summands, given that of the output."""
        for (mixer, channels), kept in zip(self._blocks[::-1], records[::-1]):
            total = channels.norm_backward(grads, kept.out, kept.out_scale, "above")
            pushed = channels.backward(total, kept.y.view(total.shape), kept.gate_up)
            total = mixer.norm_backward((total, pushed), kept.y, kept.y_scale, "below")
            grads = total, mixer.backward(total, kept.x.view(total.shape), kept.mixer)
        shape = records[0].x.shape
        return grads[0].view(shape), grads[1].view(shape)
