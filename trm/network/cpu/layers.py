"""One mixing layer of the compiled network: the library's matrix products and one compiled pass between two of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trm.network.cpu.kernels import COLUMNS
from trm.network.cpu.launch import run
from trm.network.eager import fused
from trm.network.eager.fused import Buffers


def add_product(total: Tensor, a: Tensor, b: Tensor, buffers: Buffers) -> None:
    """total += a @ b, the sum over uses in float32."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
        return
    product = torch.mm(a, b, out=buffers.get(("product", *total.shape), a, *total.shape))
    if total.is_contiguous():
        run("accumulate", product, len(total), total, product, total.shape[1])
    else:
        rows, columns = total.t().shape
        run("accumulate_transposed", product, rows, total.t(), product, columns, rows)


class Linear:
    """A projection of rows: x [N, K] to x @ weight^T [N, C], with the gradient's float32 sum (None: inference)."""

    def __init__(self, weight: Tensor, grad: Tensor | None, buffers: Buffers):
        self.weight, self.grad, self._buffers = weight, grad, buffers

    def prepare(self) -> None:
        """Called whenever the weight has changed."""

    def forward(self, x: Tensor, out: Tensor) -> Tensor:
        """The projection, in `out`."""
        return torch.mm(x, self.weight.t(), out=out)

    def backward(self, grad: Tensor, out: Tensor) -> Tensor:
        """Gradient of x, in `out`, from that of the projection."""
        return torch.mm(grad, self.weight, out=out)

    def add_gradient(self, grad: Tensor, x: Tensor) -> None:
        """Add the weight's gradient."""
        add_product(self.grad, grad.t(), x, self._buffers)


class Layer:
    """One mixing layer: two weights in the forward dtype and their gradients' float32 sums (None: inference)."""

    tokens = False
    """Over the token axis: x is [L, M], weights stand left; else [N, D], weights stand right."""

    def __init__(self, weights: tuple[Tensor, Tensor], grads: tuple[Tensor, Tensor] | None, buffers: Buffers):
        self.into, self.back = weights
        self.into_grad, self.back_grad = grads or (None, None)
        self._buffers = buffers

    def prepare(self) -> None:
        """Called whenever the weights have changed."""

    def new(self, key: Any, like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A buffer shared by all layers and uses: good until the next one asks for it."""
        return self._buffers.get((key, *shape), like, *shape, dtype=dtype)

    def result(self, x: Tensor, key: Any) -> tuple[Tensor, Tensor]:
        """Buffers for the norm of the layer's result and 1 / rms."""
        count = x.shape[1] if self.tokens else x.shape[0]
        return self.new(key, x, *x.shape), self.new(("scale", key), x, count, dtype=torch.float32)

    def norm(self, x: Tensor, mixed: Tensor, key: Any) -> tuple[Tensor, Tensor]:
        """RMSNorm of x + mixed and 1 / rms."""
        out, scale = self.result(x, key)
        if self.tokens:
            run("norm_columns", x, -(-x.shape[1] // COLUMNS), x, mixed, out, scale, *x.shape)
        else:
            run("norm_rows", x, len(x), x, mixed, out, scale, x.shape[1])
        return out, scale

    def norm_backward(self, grads: tuple[Tensor, Tensor], y: Tensor, scale: Tensor, key: str) -> Tensor:
        """Gradient before the norm from the two parts of the one after it."""
        grads = tuple(grad.view(y.shape) for grad in grads)
        out = self.new(key, y, *y.shape)
        if self.tokens:
            sums = self.new("sums", y, y.shape[1], dtype=torch.float32)
            groups = -(-y.shape[1] // COLUMNS)
            run("norm_columns_backward", y, groups, *grads, y, out, scale, *y.shape, sums)
        else:
            run("norm_rows_backward", y, len(y), *grads, y, out, scale, y.shape[1])
        return out


class SwiGLU(Layer):
    """SwiGLU with residual and norm."""

    def kept(self, x: Tensor, length: int, place: Any) -> Tensor:
        """The buffer for what backward needs of the use `place`."""
        shape = (len(self.into), x.shape[1]) if self.tokens else (len(x), len(self.into))
        return self.new(("token gate_up" if self.tokens else "gate_up", place), x, *shape)

    def forward(self, x: Tensor, gate_up: Tensor, key: Any) -> tuple[Tensor, Tensor]:
        """norm(x + SwiGLU(x)) and 1 / rms, in buffers of `key`; the projection is left in `gate_up`."""
        if self.tokens:
            torch.mm(self.into, x, out=gate_up)
        else:
            torch.mm(x, self.into.t(), out=gate_up)
        hidden = self.new("hidden", x, *self._hidden_shape(x))
        run("gate", gate_up, len(hidden), *self._halves(gate_up), hidden, *self._strides(hidden))
        out = self.new("mixed", x, *x.shape)
        left, right = (self.back, hidden) if self.tokens else (hidden, self.back.t())
        return self.norm(x, torch.mm(left, right, out=out), key)

    def backward(self, grad: Tensor, x: Tensor, gate_up: Tensor) -> Tensor:
        """Gradient of x through SwiGLU alone; adds the weights' gradients; overwrites `gate_up`."""
        hidden = self.new("hidden", x, *self._hidden_shape(x))
        if self.tokens:
            torch.mm(self.back.t(), grad, out=hidden)
        else:
            torch.mm(grad, self.back, out=hidden)
        run("gate_backward", gate_up, len(hidden), *self._halves(gate_up), hidden, *self._strides(hidden))
        out = self.new("mixed", x, *x.shape)
        if self.tokens:
            add_product(self.back_grad, grad, hidden.t(), self._buffers)
            # the smaller operand first: three times as fast where tokens are few
            add_product(self.into_grad.t(), x, gate_up.t(), self._buffers)
            return torch.mm(self.into.t(), gate_up, out=out)
        add_product(self.back_grad, grad.t(), hidden, self._buffers)
        add_product(self.into_grad, gate_up.t(), x, self._buffers)
        return torch.mm(gate_up, self.into, out=out)

    def _hidden_shape(self, x: Tensor) -> tuple[int, int]:
        inner = self.back.shape[1]
        return (inner, x.shape[1]) if self.tokens else (len(x), inner)

    def _halves(self, gate_up: Tensor) -> tuple[Tensor, Tensor]:
        return fused.halves(gate_up, self.tokens)

    def _strides(self, hidden: Tensor) -> tuple[int, int]:
        columns = hidden.shape[1]
        return columns, columns if self.tokens else 2 * columns


class Tokens(SwiGLU):
    """SwiGLU over tokens."""

    tokens = True


class Channels(SwiGLU):
    """SwiGLU over channels."""
