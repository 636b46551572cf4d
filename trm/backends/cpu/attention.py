"""Attention of the CPU network: the library's batched products; softmax and rotary positions as compiled passes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from trm.backends.cpu.launch import run
from trm.backends.cpu.layers import Layer, add_product
from trm.model import definition as network


class Heads(NamedTuple):
    """What backward needs: rotated queries and keys, values [B H, L, K], and probabilities [B H, L, L]."""

    q: Tensor
    k: Tensor
    v: Tensor
    probabilities: Tensor


class Attention(Layer):
    """Attention; x is [L * B, D]."""

    def __init__(self, *layer: Any, heads: int, rope: bool):
        super().__init__(*layer)
        self.heads, self.rope = heads, rope
        self._tables: dict[int, tuple[Tensor, Tensor]] = {}

    def kept(self, x: Tensor, length: int, place: Any) -> Heads:
        many, width = len(x) // length * self.heads, x.shape[1] // self.heads
        q, k, v = (self.new((name, place), x, many, length, width) for name in "qkv")
        return Heads(q, k, v, self.new(("probabilities", place), x, many, length, length))

    def forward(self, x: Tensor, kept: Heads, key: Any) -> tuple[Tensor, Tensor]:
        qkv = torch.mm(x, self.into.t(), out=self.new("qkv", x, len(x), len(self.into)))
        run("split_heads", qkv, len(x), qkv, *kept[:3], *self._angles(kept.q), *self._sizes(x, kept.q))
        q, k, v, probabilities = kept
        torch.bmm(q, k.transpose(1, 2), out=probabilities)
        length = q.shape[1]
        run("softmax", probabilities, len(q) * length, probabilities, length)
        attended = torch.bmm(probabilities, v, out=self.new("attended", x, *v.shape))
        flat = self._join(attended, x)
        return self.norm(x, torch.mm(flat, self.back.t(), out=self.new("mixed", x)), key)

    def backward(self, grad: Tensor, x: Tensor, kept: Heads) -> Tensor:
        q, k, v, probabilities = kept
        into_grad, back_grad = self.grads
        many, length = q.shape[:2]
        pushed = torch.mm(grad, self.back, out=self.new("mixed", x))
        d_attended = self.new("d attended", x, *v.shape)
        run("join_heads", x, len(x), pushed, d_attended, *self._sizes(x, q), 1)
        attended = torch.bmm(probabilities, v, out=self.new("attended", x, *v.shape))
        add_product(back_grad, grad.t(), self._join(attended, x), self._buffers)
        dv = torch.bmm(probabilities.transpose(1, 2), d_attended, out=attended)
        scores = torch.bmm(d_attended, v.transpose(1, 2), out=self.new("d scores", x, many, length, length))
        run("softmax_backward", scores, many * length, scores, probabilities, length)
        dk = torch.bmm(scores.transpose(1, 2), q, out=d_attended)
        dq = torch.bmm(scores, k, out=self.new("d q", x, *q.shape))
        qkv = self.new("qkv", x, len(x), len(self.into))
        run("split_heads_backward", qkv, len(x), qkv, dq, dk, dv, *self._angles(q), *self._sizes(x, q))
        add_product(into_grad, qkv.t(), x, self._buffers)
        return torch.mm(qkv, self.into, out=pushed)

    def _join(self, attended: Tensor, x: Tensor) -> Tensor:
        flat = self.new("joined", x)
        run("join_heads", x, len(x), attended, flat, *self._sizes(x, attended), 0)
        return flat

    def _sizes(self, x: Tensor, q: Tensor) -> tuple[int, int, int, int]:
        length, width = q.shape[1:]
        return len(x) // length, self.heads, width, length

    def _angles(self, q: Tensor) -> tuple[Tensor, Tensor]:
        length, width = q.shape[1:]
        if length not in self._tables:
            cos, sin = (table[:, 0, 0, : width // 2] for table in network.rope_tables(length, width))
            if not self.rope:
                cos, sin = torch.ones_like(cos), torch.zeros_like(sin)
            self._tables[length] = cos.contiguous(), sin.contiguous()
        return self._tables[length]
