"""The mixing layers of a block, forward and backward, built from kernels and library matrix products.

Their buffers are reused from step to step, because allocating memory costs more than writing to it. The gradients of
all uses of a weight are summed in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trm.backends.cuda import attention, norm, swiglu, tokens
from trm.backends.cuda.tiles import Table, chosen
from trm.model import definition as network


class Buffers:
    """Scratch tensors by key and shape."""

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


class Layer:
    """One mixing layer with its weights in the forward dtype and their float32 gradients (none for inference)."""

    def __init__(
        self, weights: tuple[Tensor, Tensor], grads: tuple[Tensor, ...], buffers: Buffers, table: Table
    ):
        self.into, self.back = weights
        self.grads, self.buffers, self.table = grads, buffers, table
        self.new = buffers.get

    def prepare(self) -> None:
        """Update cached copies after the weights have changed."""


class Channels(Layer):
    """SwiGLU over channels; x is [N, D]. Returns the residual branch."""

    def forward(self, x: Tensor, gate_up: Tensor | None) -> Tensor:
        """SwiGLU(x) [N, D]; keeps the projection [N, 2 I] in `gate_up` for backward."""
        inner = self.back.shape[1]
        tile = chosen(self.table, "channels", x.shape[1], inner)
        hidden = swiglu.product(x, self.into, self.new("hidden", x, len(x), inner), gate_up, tile)
        return torch.mm(hidden, self.back.t(), out=self.new("mixed", x))

    def backward(self, grad: Tensor, x: Tensor, gate_up: Tensor) -> Tensor:
        """Gradient of x, given that of x + SwiGLU(x). Accumulates weight gradients; overwrites `gate_up`."""
        into_grad, back_grad = self.grads
        hidden = torch.mm(grad, self.back, out=self.new("hidden", x, len(x), self.back.shape[1]))
        norm.gate_backward(gate_up, hidden)
        add_product(back_grad, grad.t(), hidden, self.buffers)
        add_product(into_grad, gate_up.t(), x, self.buffers)
        pushed = torch.mm(gate_up, self.into, out=self.new("mixed", x))
        return pushed.add_(grad)


class Tokens(Layer):
    """SwiGLU over tokens with the residual and the norm; x is [L, M]."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.padded = tokens.padded(self.into, self.back)
        self.prepare()

    def prepare(self) -> None:
        length = self.back.shape[0]
        self.padded[0][:, :length].copy_(self.into)
        self.padded[1][:length].copy_(self.back)

    def forward(self, x: Tensor, y: Tensor, scale: Tensor | None) -> Tensor:
        """y = rms_norm(x + SwiGLU(x)) over tokens."""
        return tokens.mix(x, *self.padded, y, scale, chosen(self.table, "tokens", *self.back.shape))

    def backward(self, grad: Tensor, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        """Gradient of x, given that of y. Recomputes the projection; accumulates weight gradients."""
        into_grad, back_grad = self.grads
        inner, columns = self.back.shape[1], x.shape[1]
        gate_up = self.new("token gate_up", x, 2 * inner, columns)
        hidden = self.new("token hidden", x, inner, columns)
        total, out = self.new("token total", x), self.new("token out", x)
        tile = chosen(self.table, "tokens backward", *self.back.shape)
        tokens.mix_backward(x, *self.padded, y, scale, grad, total, gate_up, hidden, out, tile)
        add_product(back_grad, total, hidden.t(), self.buffers)
        add_product(into_grad.t(), x, gate_up.t(), self.buffers)
        return out


class Attention(Layer):
    """Multi-head attention; x is [L, B, D]. Returns the residual branch."""

    def __init__(self, *args: Any, heads: int, rope: bool):
        super().__init__(*args)
        self.heads, self.rope = heads, rope
        self._tables: tuple[Tensor, Tensor] | None = None

    def tables(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Cosine and sine of the rotary positions."""
        if self.rope and self._tables is None:
            cos, sin = network.rope_tables(len(x), x.shape[-1] // self.heads, x.device)
            self._tables = cos.contiguous(), sin.contiguous()
        return self._tables

    def forward(self, x: Tensor, qkv: Tensor, attended: Tensor) -> Tensor:
        """Attention(x) [N, D]; keeps projections [L, B, 3 D] and head outputs [L, B, D] for backward."""
        flat = x.reshape(-1, x.shape[-1])
        torch.mm(flat, self.into.t(), out=qkv.view(len(flat), -1))
        attention.attend(qkv, self.heads, self.tables(x), attended)
        return torch.mm(attended.view(flat.shape), self.back.t(), out=self.new("mixed", x, *flat.shape))

    def backward(self, grad: Tensor, x: Tensor, qkv: Tensor, attended: Tensor) -> Tensor:
        """Gradient of x [N, D], given that of x + attention(x). Accumulates weight gradients; overwrites `qkv`."""
        into_grad, back_grad = self.grads
        flat = x.reshape(-1, x.shape[-1])
        add_product(back_grad, grad.t(), attended.view(flat.shape), self.buffers)
        pushed = torch.mm(grad, self.back, out=self.new("pushed", x, *flat.shape)).view(attended.shape)
        qkv_grad = attention.attend_backward(qkv, self.heads, self.tables(x), pushed).view(len(flat), -1)
        add_product(into_grad, qkv_grad.t(), flat, self.buffers)
        return torch.mm(qkv_grad, self.into, out=self.new("mixed", x, *flat.shape)).add_(grad)
