"""Every Triton kernel against PyTorch in float64, on random inputs and with outputs prefilled with NaN.

Kernels round intermediate activations and outputs to the tensors' dtype and sum in float32. The limits are five unit
roundoffs of float16 and bfloat16 (2^-11, 2^-8), and for float32 the error of sums of some thousand terms. One wrong
column in a thousand is an error of 3e-2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trm.backends.cuda import attention, norm, swiglu, tokens
from trm.backends.cuda.tiles import Tile, architecture_of, chosen, table
from trm.model import definition as network
from trm.model.definition import rms_norm
from trm.study.flops import inner_width
from trm.study.schema import ModelConfig

TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


class Check(NamedTuple):
    """A kernel's output compared with float64."""

    name: str
    error: float
    """Relative error in the 2-norm."""
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the error is below the limit (NaN is not)."""
        return self.error < self.limit


class Shapes(NamedTuple):
    """Sizes of a check."""

    batch: int = 8
    length: int = 97
    width: int = 512
    heads: int = 8
    inner: int = 1536
    token_inner: int = 512


def relative(actual: Tensor, expected: Tensor) -> float:
    """Relative error in the 2-norm."""
    expected = expected.detach().double()
    return float((actual.detach().double() - expected).norm() / expected.norm())


class KernelChecks:
    """The checks of all kernels, for one size and dtype on one device."""

    def __init__(self, shapes: Shapes, dtype: torch.dtype, device: torch.device):
        self.shapes, self.dtype, self.device = shapes, dtype, device
        self._generator = torch.Generator(device).manual_seed(0)

    def _draw(self, *shape: int, std: float = 1.0) -> Tensor:
        """Normal numbers in float64 that are exact in the dtype."""
        drawn = torch.randn(shape, generator=self._generator, device=self.device, dtype=torch.float64)
        return (drawn * std).to(self.dtype).double()

    def _empty(self, *shape: int, kind: torch.dtype | None = None) -> Tensor:
        return torch.full(shape, math.nan, device=self.device, dtype=kind or self.dtype)

    def _check(self, name: str, actual: Tensor | None, expected: Tensor | None, factor: float = 1.0) -> Check:
        assert actual is not None
        assert expected is not None
        text = f"{name} {str(self.dtype).removeprefix('torch.')}"
        return Check(text, relative(actual, expected), factor * TOLERANCE[self.dtype])

    def elementwise(self) -> Iterator[Check]:
        """What torch.compile makes: residual and RMSNorm, its backward, and the gate's."""
        sizes, dtype = self.shapes, self.dtype
        rows = sizes.length * sizes.batch
        x, mixed, extra, grad = (self._draw(rows, sizes.width) for _ in range(4))
        before = (x + mixed).requires_grad_()
        normed = rms_norm(before, 1)
        normed.backward(grad)
        y, into, out = (self._empty(rows, sizes.width) for _ in range(3))
        scale = self._empty(rows, kind=norm.scale_dtype(y))
        norm.residual_norm(x.to(dtype), mixed.to(dtype), y, scale, extra.to(dtype), into)
        yield self._check("norm", y, normed)
        yield self._check("norm into", into, normed + extra)
        norm.norm_backward(grad.to(dtype), y, scale, out)
        yield self._check("norm backward", out, before.grad)
        gate_up, pushed = self._draw(rows, 2 * sizes.inner).requires_grad_(), self._draw(rows, sizes.inner)
        gate, up = gate_up.chunk(2, 1)
        hidden = F.silu(gate) * up
        hidden.backward(pushed)
        kept, recomputed = gate_up.detach().to(dtype), pushed.to(dtype)
        norm.gate_backward(kept, recomputed)
        yield self._check("gate backward", kept, gate_up.grad)
        yield self._check("gate backward hidden", recomputed, hidden)

    def channels(self, tile: Tile) -> Iterator[Check]:
        """SwiGLU's projection with the gate in its epilogue."""
        sizes, name = self.shapes, "swiglu product " + "x".join(map(str, tile.values()))
        rows = sizes.length * sizes.batch
        x = self._draw(rows, sizes.width)
        weight = self._draw(2 * sizes.inner, sizes.width, std=sizes.width**-0.5)
        projection = x @ weight.t()
        gate, up = projection.chunk(2, 1)
        expected = F.silu(gate) * up
        kept, hidden = self._empty(rows, 2 * sizes.inner), self._empty(rows, sizes.inner)
        narrow = x.to(self.dtype), weight.to(self.dtype)
        swiglu.product(*narrow, hidden, kept, tile)
        yield self._check(name, hidden, expected)
        yield self._check(name + " projection", kept, projection)
        swiglu.product(*narrow, hidden.fill_(math.nan), None, tile)
        yield self._check(name + " alone", hidden, expected)

    def tokens(self, tile: Tile | None, backward: Tile | None) -> Iterator[Check]:
        """The token mixing of a block, forward and backward; None skips either."""
        length, inner = self.shapes.length, self.shapes.token_inner
        columns = self.shapes.batch * self.shapes.width
        x = self._draw(length, columns).requires_grad_()
        gate_up = self._draw(2 * inner, length, std=length**-0.5).requires_grad_()
        down = self._draw(length, inner, std=inner**-0.5).requires_grad_()
        grad = self._draw(length, columns)
        gate, up = (gate_up @ x).chunk(2)
        hidden = F.silu(gate) * up
        total = x + down @ hidden
        expected = rms_norm(total, 0)
        expected.backward(grad)
        narrow = x.detach().to(self.dtype)
        padded = tokens.padded(gate_up.detach().to(self.dtype), down.detach().to(self.dtype))
        padded[0][:, :length], padded[1][:length] = gate_up.detach(), down.detach()
        y = self._empty(length, columns)
        scale = self._empty(columns, kind=norm.scale_dtype(y))
        if tile:
            tokens.mix(narrow, *padded, y, scale, tile)
            yield self._check("token mixing " + "x".join(map(str, tile.values())), y, expected)
        if not backward:
            return
        name = "token mixing backward " + "x".join(map(str, backward.values()))
        y.copy_(expected.detach())
        scale.copy_(total.detach().square().mean(0).add(network.EPS).rsqrt())
        total_grad, out = self._empty(length, columns), self._empty(length, columns)
        pushed, kept = self._empty(2 * inner, columns), self._empty(inner, columns)
        grads = grad.to(self.dtype), total_grad, pushed, kept, out
        tokens.mix_backward(narrow, *padded, y, scale, *grads, backward)
        yield self._check(name, out, x.grad)
        yield self._check(name + " hidden", kept, hidden)
        yield self._check(name + " gate, up", pushed.double() @ x.detach().t(), gate_up.grad)
        yield self._check(name + " down", total_grad.double() @ hidden.detach().t(), down.grad)

    def attention(self, rope: bool) -> Iterator[Check]:
        """The attention core, forward and backward."""
        sizes, head = self.shapes, self.shapes.width // self.shapes.heads
        qkv = self._draw(sizes.length, sizes.batch, 3 * sizes.width).requires_grad_()
        grad = self._draw(sizes.length, sizes.batch, sizes.width)
        cos, sin = (t.contiguous() for t in network.rope_tables(sizes.length, head, self.device))
        q, k, v = qkv.unflatten(-1, (3, sizes.heads, -1)).unbind(2)
        if rope:
            q, k = (network.rotate(t, cos.double(), sin.double()) for t in (q, k))
        q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))
        weights = torch.softmax(q @ k.transpose(-1, -2) * head**-0.5, -1)
        expected = (weights @ v).permute(2, 0, 1, 3).flatten(2)
        expected.backward(grad)
        narrow, tables = qkv.detach().to(self.dtype), (cos, sin) if rope else None
        out = attention.attend(narrow, sizes.heads, tables, self._empty(*expected.shape))
        yield self._check(f"attention rope={rope}", out, expected)
        attention.attend_backward(narrow, sizes.heads, tables, grad.to(self.dtype))
        yield self._check(f"attention backward rope={rope}", narrow, qkv.grad, 2)


def checks_of_run(
    model: ModelConfig, cells: int, dtype: torch.dtype, device: torch.device
) -> Iterator[Check]:
    """The checks of the kernels that a run uses, at its sizes except for the batch: 16 rows on a GPU, because Triton
    compiles another program for sizes that 16 does not divide."""
    length = cells + model.puzzle_tokens
    inner, token_inner = inner_width(model, model.d_model), inner_width(model, length)
    choices, rows = table(architecture_of(device)), 16 if device.type == "cuda" else 2
    checks = KernelChecks(Shapes(rows, length, model.d_model, model.heads, inner, token_inner), dtype, device)
    yield from checks.elementwise()
    yield from checks.channels(chosen(choices, "channels", model.d_model, inner))
    if model.mixer == "mlp":
        operations = ("tokens", "tokens backward")
        yield from checks.tokens(*(chosen(choices, name, length, token_inner) for name in operations))
    else:
        yield from checks.attention(model.position == "rope")
