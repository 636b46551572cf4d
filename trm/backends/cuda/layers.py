"""The mixing layers of a block, forward and backward, built from kernels and library matrix products.

Each operation has a fused kernel (matrix product and epilogue in one program) and a library path (cuBLAS products with
elementwise kernels between them); `trm.backends.cuda.tiles` chooses between them by shape.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trm.backends.cuda import attention, norm, swiglu, tokens
from trm.backends.cuda.common import INTERPRETED
from trm.backends.cuda.tiles import Table, chosen
from trm.model import definition as network
from trm.model.fused import Buffers, add_product


class Layer:
    """One mixing layer with its weights in the forward dtype and their float32 gradients (none for inference)."""

    def __init__(
        self,
        weights: tuple[Tensor, Tensor],
        grads: tuple[Tensor, ...],
        buffers: Buffers,
        table: Table,
    ):
        self.into, self.back = weights
        self.grads, self.buffers, self.table = grads, buffers, table
        self.new = buffers.get
        # float32 products cannot use tensor cores: the library is faster, and a kernel takes minutes to compile
        self.products = INTERPRETED or self.into.element_size() == 2

    def prepare(self) -> None:
        """Update cached copies after the weights have changed."""


class Channels(Layer):
    """SwiGLU over channels; x is [N, D]. Returns the residual branch."""

    def forward(self, x: Tensor, gate_up: Tensor | None) -> Tensor:
        """SwiGLU(x) [N, D]; keeps the projection [N, 2 I] in `gate_up` for backward."""
        inner = self.back.shape[1]
        hidden = self.new("hidden", x, len(x), inner)
        tile = chosen(self.table, "channels", x.shape[1], inner) if self.products else None
        if tile:
            swiglu.product(x, self.into, hidden, gate_up, tile)
        else:
            wide = self.new("gate_up", x, len(x), 2 * inner) if gate_up is None else gate_up
            norm.gate(torch.mm(x, self.into.t(), out=wide), hidden)
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
        self.short = self.back.shape[0] <= tokens.LONGEST
        if self.short:
            self.padded = tokens.padded(self.into, self.back)
        self.prepare()

    def prepare(self) -> None:
        if self.short:
            length = self.back.shape[0]
            self.padded[0][:, :length].copy_(self.into)
            self.padded[1][:length].copy_(self.back)

    def _aligned(self) -> Tensor:
        """The projection with rows aligned to 16 bytes, which the tensor cores load fastest."""
        return self.padded[0][:, : self.back.shape[0]] if self.short else self.into

    def _tile(self, operation: str) -> dict[str, int] | None:
        return tokens.tile_of(self.table, operation, *self.back.shape) if self.products else None

    def forward(self, x: Tensor, y: Tensor, scale: Tensor | None) -> Tensor:
        """y = rms_norm(x + SwiGLU(x)) over tokens."""
        tile = self._tile("tokens")
        if tile:
            return tokens.mix(x, *self.padded, y, scale, tile)
        inner, columns = self.back.shape[1], x.shape[1]
        gate_up = torch.mm(self._aligned(), x, out=self.new("token gate_up", x, 2 * inner, columns))
        hidden = norm.gate(gate_up, self.new("token hidden", x, inner, columns))
        mixed = torch.mm(self.back, hidden, out=self.new("token mixed", x))
        norm.residual_norm(x, mixed, 0, y, scale)
        return y

    def backward(self, grad: Tensor, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        """Gradient of x, given that of y. Recomputes the projection; accumulates weight gradients."""
        into_grad, back_grad = self.grads
        inner, columns = self.back.shape[1], x.shape[1]
        gate_up = self.new("token gate_up", x, 2 * inner, columns)
        hidden = self.new("token hidden", x, inner, columns)
        total, out = self.new("token total", x), self.new("token out", x)
        tile = self._tile("tokens backward")
        if tile:
            tokens.mix_backward(x, *self.padded, y, scale, grad, total, gate_up, hidden, out, tile)
        else:
            norm.norm_backward(grad, y, scale, 0, total)
            torch.mm(self._aligned(), x, out=gate_up)
            torch.mm(self.back.t(), total, out=hidden)
            norm.gate_backward(gate_up, hidden)
            torch.mm(self._aligned().t(), gate_up, out=out).add_(total)
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

    def _library_core(self, qkv: Tensor) -> Tensor:
        """Head outputs [L, B, D] from projections [L, B, 3 D]."""
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).unbind(2)
        if tables := self.tables(qkv[..., : self.into.shape[1]]):
            q, k = network.rotate(q, *tables), network.rotate(k, *tables)
        q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3).flatten(2)

    def _has_kernels(self, x: Tensor) -> bool:
        """Whether kernels compute the attention core, forward and backward."""
        return self.products and attention.serves(self.table, len(x), x.shape[-1] // self.heads)

    def forward(self, x: Tensor, qkv: Tensor, attended: Tensor) -> Tensor:
        """Attention(x) [N, D]; keeps projections [L, B, 3 D] and head outputs [L, B, D] for backward."""
        flat = x.reshape(-1, x.shape[-1])
        torch.mm(flat, self.into.t(), out=qkv.view(len(flat), -1))
        if self._has_kernels(x):
            attention.attend(qkv, self.heads, self.tables(x), attended)
        else:
            attended.copy_(self._library_core(qkv))
        return torch.mm(attended.view(flat.shape), self.back.t(), out=self.new("mixed", x, *flat.shape))

    def backward(self, grad: Tensor, x: Tensor, qkv: Tensor, attended: Tensor) -> Tensor:
        """Gradient of x [N, D], given that of x + attention(x). Accumulates weight gradients; overwrites `qkv`."""
        into_grad, back_grad = self.grads
        flat = x.reshape(-1, x.shape[-1])
        add_product(back_grad, grad.t(), attended.view(flat.shape), self.buffers)
        pushed = torch.mm(grad, self.back, out=self.new("pushed", x, *flat.shape)).view(attended.shape)
        if self._has_kernels(x):
            attention.attend_backward(qkv, self.heads, self.tables(x), pushed)
        else:
            with torch.enable_grad():
                leaf = qkv.detach().requires_grad_()
                (qkv_grad,) = torch.autograd.grad(self._library_core(leaf), leaf, pushed)
            qkv.copy_(qkv_grad)
        qkv_grad = qkv.view(len(flat), -1)
        add_product(into_grad, qkv_grad.t(), flat, self.buffers)
        return torch.mm(qkv_grad, self.into, out=self.new("mixed", x, *flat.shape)).add_(grad)
