"""The mixing layers of a block, forward and backward, from kernels and library products.

Each operation has a `triton` way (products and what follows them in one kernel) and a `library` way (products of the
vendor's library, elementwise kernels between them); `trm.network.cuda.choice` takes the faster one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from trm.network import definition as network
from trm.network.cuda import attention, norm, swiglu, tokens
from trm.network.cuda.choice import Chooser, Way
from trm.network.cuda.common import INTERPRETED
from trm.network.eager.fused import Buffers, add_product, attention_core


class Layer:
    """One mixing layer with its weights in the forward dtype and their gradients' float32 sums (None: inference)."""

    def __init__(
        self,
        weights: tuple[Tensor, Tensor],
        grads: tuple[Tensor, Tensor] | None,
        buffers: Buffers,
        choose: Chooser,
    ):
        self.into, self.back = weights
        self.into_grad, self.back_grad = grads or (None, None)
        self.buffers, self.choose = buffers, choose
        self.timed = self.into.is_cuda and not INTERPRETED
        # float32 products miss the matrix units: the library's are faster, and a kernel's would take minutes to compile
        self.products = INTERPRETED or self.into.element_size() == 2

    def prepare(self) -> None:
        """Called when the weights have changed."""

    def new(self, key: Any, like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A buffer of the stack."""
        return self.buffers.get((key, *shape), like, *shape, dtype=dtype)


class Channels(Layer):
    """SwiGLU over channels; x is [N, D]. Returns what the residual adds."""

    def forward(self, x: Tensor, gate_up: Tensor | None) -> Tensor:
        """SwiGLU(x) [N, D]; the projection [N, 2 I] is left in `gate_up` for backward."""
        inner = self.back.shape[1]
        hidden = self.new("hidden", x, len(x), inner)

        def library() -> None:
            wide = self.new("gate_up", x, len(x), 2 * inner) if gate_up is None else gate_up
            swiglu.gate(torch.mm(x, self.into.t(), out=wide), hidden)

        def ways() -> Iterator[Way]:
            for shape in swiglu.SHAPES if self.products else ():
                yield Way("triton", shape, lambda s=shape: swiglu.product(x, self.into, hidden, gate_up, s))
            yield Way("library", {}, library)

        self.choose.run("channels", (tuple(x.shape), gate_up is None), list(ways()), self.timed)
        return torch.mm(hidden, self.back.t(), out=self.new("mixed", x, *x.shape))

    def backward(self, grad: Tensor, x: Tensor, gate_up: Tensor) -> Tensor:
        """Gradient of x from that of x + SwiGLU(x); adds the weights' gradients; overwrites `gate_up`."""
        hidden = torch.mm(grad, self.back, out=self.new("hidden", x, len(x), self.back.shape[1]))
        swiglu.gate_backward(gate_up, hidden)
        add_product(self.back_grad, grad.t(), hidden, self.buffers)
        add_product(self.into_grad, gate_up.t(), x, self.buffers)
        pushed = torch.mm(gate_up, self.into, out=self.new("mixed", x, *x.shape))
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

    def _library(self, x: Tensor, y: Tensor, scale: Tensor | None) -> None:
        inner, columns = self.back.shape[1], x.shape[1]
        gate_up = torch.mm(self._aligned(), x, out=self.new("token gate_up", x, 2 * inner, columns))
        hidden = swiglu.gate(gate_up, self.new("token hidden", x, inner, columns))
        mixed = torch.mm(self.back, hidden, out=self.new("token mixed", x, *x.shape))
        norm.residual_norm(x, mixed, 0, y, scale)

    def _aligned(self) -> Tensor:
        """The projection with rows that start at multiples of 16 bytes: what the matrix units load fastest."""
        return self.padded[0][:, : self.back.shape[0]] if self.short else self.into

    def forward(self, x: Tensor, y: Tensor, scale: Tensor | None) -> Tensor:
        """y = rms_norm(x + SwiGLU(x)) over tokens."""
        ways = [Way("library", {}, lambda: self._library(x, y, scale))]
        if self.short and self.products:
            ways = [
                Way("triton", shape, lambda s=shape: tokens.mix(x, *self.padded, y, scale, s))
                for shape in tokens.fitting(tokens.SHAPES, self.back.shape[1])
            ] + ways
        self.choose.run("tokens", (tuple(x.shape), scale is None), ways, self.timed)
        return y

    def backward(self, grad: Tensor, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        """Gradient of x from that of y; the projection is computed again; adds the weights' gradients."""
        inner, columns = self.back.shape[1], x.shape[1]
        gate_up = self.new("token gate_up", x, 2 * inner, columns)
        hidden = self.new("token hidden", x, inner, columns)
        total, out = self.new("token total", x, *x.shape), self.new("token out", x, *x.shape)

        def library() -> None:
            norm.norm_backward(grad, y, scale, 0, total)
            torch.mm(self._aligned(), x, out=gate_up)
            torch.mm(self.back.t(), total, out=hidden)
            swiglu.gate_backward(gate_up, hidden)
            torch.mm(self._aligned().t(), gate_up, out=out).add_(total)

        ways = [Way("library", {}, library)]
        if self.short and self.products:
            ways = [
                Way(
                    "triton",
                    shape,
                    lambda s=shape: tokens.mix_backward(
                        x, *self.padded, y, scale, grad, total, gate_up, hidden, out, s
                    ),
                )
                for shape in tokens.fitting(tokens.BACKWARD_SHAPES, inner)
            ] + ways
        self.choose.run("tokens", (tuple(x.shape), "backward"), ways, self.timed)
        add_product(self.back_grad, total, hidden.t(), self.buffers)
        add_product(self.into_grad.t(), x, gate_up.t(), self.buffers)
        return out


class Attention(Layer):
    """Multi-head attention; x is [L, B, D]. Returns what the residual adds."""

    def __init__(self, *args: Any, heads: int, rope: bool):
        super().__init__(*args)
        self.heads, self.rope = heads, rope
        self._tables: tuple[Tensor, Tensor] | None = None
        self._core: Any = None

    def tables(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Cosine and sine of the rotary positions."""
        if self.rope and self._tables is None:
            cos, sin = network.rope_tables(len(x), x.shape[-1] // self.heads, x.device)
            self._tables = cos.contiguous(), sin.contiguous()
        return self._tables

    def _library_core(self, qkv: Tensor) -> Tensor:
        if self._core is None:
            self._core = attention_core(
                self.heads, *(self.tables(qkv[..., : self.into.shape[1]]) or (None, None))
            )
        return self._core(qkv)

    def _alone(self, x: Tensor) -> bool:
        capability = torch.cuda.get_device_capability(x.device) if x.is_cuda else (9, 0)
        return not self.products or not attention.fits(len(x), x.shape[-1] // self.heads, capability)

    def forward(self, x: Tensor, qkv: Tensor, attended: Tensor) -> Tensor:
        """Attention(x) [N, D]; projections [L, B, 3 D] and heads' outputs [L, B, D] are left for backward."""
        flat = x.reshape(-1, x.shape[-1])
        torch.mm(flat, self.into.t(), out=qkv.view(len(flat), -1))
        ways = [Way("library", {}, lambda: attended.copy_(self._library_core(qkv)))]
        if not self._alone(x):
            own = Way("triton", {}, lambda: attention.attend(qkv, self.heads, self.tables(x), attended))
            ways = [own, *ways]
        with torch.no_grad():
            self.choose.run("attention", tuple(x.shape), ways, self.timed)
        return torch.mm(attended.view(flat.shape), self.back.t(), out=self.new("mixed", x, *flat.shape))

    def backward(self, grad: Tensor, x: Tensor, qkv: Tensor, attended: Tensor) -> Tensor:
        """Gradient of x [N, D] from that of x + attention(x); adds the weights' gradients; overwrites `qkv`."""
        flat = x.reshape(-1, x.shape[-1])
        add_product(self.back_grad, grad.t(), attended.view(flat.shape), self.buffers)
        pushed = torch.mm(grad, self.back, out=self.new("pushed", x, *flat.shape)).view(attended.shape)
        if self._alone(x) or self.choose.only.get("attention") == "library":
            with torch.enable_grad():
                leaf = qkv.detach().requires_grad_()
                (found,) = torch.autograd.grad(self._library_core(leaf), leaf, pushed)
            qkv.copy_(found)
        else:
            attention.attend_backward(qkv, self.heads, self.tables(x), pushed)
        qkv_grad = qkv.view(len(flat), -1)
        add_product(self.into_grad, qkv_grad.t(), flat, self.buffers)
        return torch.mm(qkv_grad, self.into, out=self.new("mixed", x, *flat.shape)).add_(grad)
