"""A mixing layer of the CPU network: library matrix products with one compiled pass between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from trm.backends.cpu.kernels import COLUMNS
from trm.backends.cpu.launch import run
from trm.model.fused import Buffers


def add_product(total: Tensor, a: Tensor, b: Tensor, buffers: Buffers) -> None:
    """total += a @ b, accumulated in the dtype of `total`."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
        return
    product = torch.mm(a, b, out=buffers.get("product", a, *total.shape))
    if total.is_contiguous():
        run("accumulate", product, len(total), total, product, total.shape[1])
    else:
        rows, columns = total.t().shape
        run("accumulate_transposed", product, rows, total.t(), product, columns, rows)


class Layer(ABC):
    """Two weights in the forward dtype, their float32 gradients (none for inference), residual and norm."""

    def __init__(
        self,
        weights: tuple[Tensor, Tensor],
        grads: tuple[Tensor, ...],
        buffers: Buffers,
        tokens: bool = False,
    ):
        self.tokens = tokens
        """Norm (and SwiGLU) over tokens: x is [L, M], weights on the left. Otherwise channels: [N, D], on the right."""
        self.into, self.back = weights
        self.grads, self._buffers = grads, buffers
        self.new = buffers.get
        """A buffer shared by all layers and uses: valid until the same key is requested again."""

    @abstractmethod
    def kept(self, x: Tensor, length: int, place: Any) -> Any:
        """Buffers for what backward needs of the use at `place`."""

    @abstractmethod
    def forward(self, x: Tensor, kept: Any, key: Any) -> tuple[Tensor, Tensor]:
        """norm(x + layer(x)) and 1 / rms, in the buffers of `key`; fills `kept`."""

    @abstractmethod
    def backward(self, grad: Tensor, x: Tensor, kept: Any) -> Tensor:
        """Gradient of x through the layer alone. Accumulates weight gradients; overwrites `kept`."""

    def norm(self, x: Tensor, mixed: Tensor, key: Any) -> tuple[Tensor, Tensor]:
        """RMSNorm of x + mixed and 1 / rms, in the buffers of `key`."""
        out = self.new(key, x)
        scale = self.new(("scale", key), x, x.shape[1 if self.tokens else 0], dtype=torch.float32)
        if self.tokens:
            run("norm_columns", x, -(-x.shape[1] // COLUMNS), x, mixed, out, scale, *x.shape)
        else:
            run("norm_rows", x, len(x), x, mixed, out, scale, x.shape[1])
        return out, scale

    def norm_backward(self, grads: tuple[Tensor, Tensor], y: Tensor, scale: Tensor, key: str) -> Tensor:
        """Gradient of the norm's input, given its output's gradient as two summands."""
        first, second = (grad.view(y.shape) for grad in grads)
        out = self.new(key, y)
        if self.tokens:
            sums = self.new("sums", y, y.shape[1], dtype=torch.float32)
            groups = -(-y.shape[1] // COLUMNS)
            run("norm_columns_backward", y, groups, first, second, y, out, scale, *y.shape, sums)
        else:
            run("norm_rows_backward", y, len(y), first, second, y, out, scale, y.shape[1])
        return out


class SwiGLU(Layer):
    """SwiGLU; backward needs its projection."""

    def kept(self, x: Tensor, length: int, place: Any) -> Tensor:
        shape = (len(self.into), x.shape[1]) if self.tokens else (len(x), len(self.into))
        return self.new(("token gate_up" if self.tokens else "gate_up", place), x, *shape)

    def forward(self, x: Tensor, kept: Tensor, key: Any) -> tuple[Tensor, Tensor]:
        gate_up = kept
        if self.tokens:
            torch.mm(self.into, x, out=gate_up)
        else:
            torch.mm(x, self.into.t(), out=gate_up)
        hidden = self.new("hidden", x, *self._hidden_shape(x))
        run("gate", gate_up, len(hidden), *self._halves(gate_up), hidden, *self._strides(hidden))
        out = self.new("mixed", x)
        left, right = (self.back, hidden) if self.tokens else (hidden, self.back.t())
        return self.norm(x, torch.mm(left, right, out=out), key)

    def backward(self, grad: Tensor, x: Tensor, kept: Tensor) -> Tensor:
        gate_up, (into_grad, back_grad) = kept, self.grads
        hidden = self.new("hidden", x, *self._hidden_shape(x))
        if self.tokens:
            torch.mm(self.back.t(), grad, out=hidden)
        else:
            torch.mm(grad, self.back, out=hidden)
        run("gate_backward", gate_up, len(hidden), *self._halves(gate_up), hidden, *self._strides(hidden))
        out = self.new("mixed", x)
        if self.tokens:
            add_product(back_grad, grad, hidden.t(), self._buffers)
            # the smaller operand first: three times as fast for few tokens
            add_product(into_grad.t(), x, gate_up.t(), self._buffers)
            return torch.mm(self.into.t(), gate_up, out=out)
        add_product(back_grad, grad.t(), hidden, self._buffers)
        add_product(into_grad, gate_up.t(), x, self._buffers)
        return torch.mm(gate_up, self.into, out=out)

    def _hidden_shape(self, x: Tensor) -> tuple[int, int]:
        inner = self.back.shape[1]
        return (inner, x.shape[1]) if self.tokens else (len(x), inner)

    def _halves(self, gate_up: Tensor) -> tuple[Tensor, ...]:
        return gate_up.chunk(2, 0 if self.tokens else 1)

    def _strides(self, hidden: Tensor) -> tuple[int, int]:
        columns = hidden.shape[1]
        return columns, columns if self.tokens else 2 * columns
