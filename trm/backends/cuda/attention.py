"""Attention over a short token axis: one program holds all tokens of one head of one row.

Reads the fused projection [L, B, 3 D] and writes [L, B, D] without transposing, applying rotary positions (half-split,
arXiv 2104.09864) on load. Scores stay on chip; backward recomputes them.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from trm.backends.cuda.common import operand, power, wide


@triton.jit
def _half(pointer, offset, inside, cos, sin, ROPE: tl.constexpr, HALF: tl.constexpr, WIDE: tl.constexpr):
    """Both halves of the channels of q or k, rotated and rounded to the projection's dtype."""
    first = tl.load(pointer + offset, mask=inside, other=0.0)
    second = tl.load(pointer + offset + HALF, mask=inside, other=0.0)
    if ROPE:
        a, b = first.to(WIDE), second.to(WIDE)
        dtype = first.dtype
        first = (a * cos - b * sin).to(dtype)
        second = (b * cos + a * sin).to(dtype)
    return first, second


@triton.jit
def _tables(
    cos, sin, offset, inside, ROPE: tl.constexpr, LENGTH: tl.constexpr, HALF: tl.constexpr, WIDE: tl.constexpr
):
    c = tl.full([LENGTH, HALF], 1.0, WIDE)
    s = tl.full([LENGTH, HALF], 0.0, WIDE)
    if ROPE:
        c = tl.load(cos + offset, mask=inside, other=0.0).to(WIDE)
        s = tl.load(sin + offset, mask=inside, other=0.0).to(WIDE)
    return c, s


@triton.jit
def _softmax(q1, q2, k1, k2, token, length, factor, WIDE: tl.constexpr, OPERAND: tl.constexpr):
    """Attention weights [query, key]; those of padded keys are 0."""
    scores = tl.dot(q1.to(OPERAND), tl.trans(k1).to(OPERAND), input_precision="ieee", out_dtype=WIDE)
    scores += tl.dot(q2.to(OPERAND), tl.trans(k2).to(OPERAND), input_precision="ieee", out_dtype=WIDE)
    scores = tl.where(token[None, :] < length, scores.to(WIDE) * factor, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def _forward(
    qkv, out, cos, sin, length, rows, heads, factor,
    LENGTH: tl.constexpr, HALF: tl.constexpr, ROPE: tl.constexpr, WIDE: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    token, channel = tl.arange(0, LENGTH), tl.arange(0, HALF)
    width = heads * 2 * HALF
    inside = token[:, None] < length
    lane = token[:, None] * rows + row
    offset = lane * (3 * width) + head * 2 * HALF + channel[None, :]
    c, s = _tables(cos, sin, token[:, None] * (2 * HALF) + channel[None, :], inside, ROPE, LENGTH, HALF, WIDE)
    q1, q2 = _half(qkv, offset, inside, c, s, ROPE, HALF, WIDE)
    k1, k2 = _half(qkv + width, offset, inside, c, s, ROPE, HALF, WIDE)
    v1, v2 = _half(qkv + 2 * width, offset, inside, c, s, False, HALF, WIDE)
    weights = _softmax(q1, q2, k1, k2, token, length, factor, WIDE, OPERAND)
    weights = weights.to(v1.dtype).to(OPERAND)
    to = out + lane * width + head * 2 * HALF + channel[None, :]
    tl.store(to, tl.dot(weights, v1.to(OPERAND), input_precision="ieee", out_dtype=WIDE), mask=inside)
    tl.store(to + HALF, tl.dot(weights, v2.to(OPERAND), input_precision="ieee", out_dtype=WIDE), mask=inside)


@triton.jit
def _backward(
    qkv, grad, cos, sin, length, rows, heads, factor,
    LENGTH: tl.constexpr, HALF: tl.constexpr, ROPE: tl.constexpr, WIDE: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    token, channel = tl.arange(0, LENGTH), tl.arange(0, HALF)
    width = heads * 2 * HALF
    inside = token[:, None] < length
    lane = token[:, None] * rows + row
    offset = lane * (3 * width) + head * 2 * HALF + channel[None, :]
    c, s = _tables(cos, sin, token[:, None] * (2 * HALF) + channel[None, :], inside, ROPE, LENGTH, HALF, WIDE)
    q1, q2 = _half(qkv, offset, inside, c, s, ROPE, HALF, WIDE)
    k1, k2 = _half(qkv + width, offset, inside, c, s, ROPE, HALF, WIDE)
    v1, v2 = _half(qkv + 2 * width, offset, inside, c, s, False, HALF, WIDE)
    weights = _softmax(q1, q2, k1, k2, token, length, factor, WIDE, OPERAND)
    source = grad + lane * width + head * 2 * HALF + channel[None, :]
    g1 = tl.load(source, mask=inside, other=0.0)
    g2 = tl.load(source + HALF, mask=inside, other=0.0)
    dtype = q1.dtype
    transposed = tl.trans(weights.to(dtype)).to(OPERAND)
    tl.store(
        qkv + 2 * width + offset,
        tl.dot(transposed, g1.to(OPERAND), input_precision="ieee", out_dtype=WIDE),
        mask=inside,
    )
    tl.store(
        qkv + 2 * width + offset + HALF,
        tl.dot(transposed, g2.to(OPERAND), input_precision="ieee", out_dtype=WIDE),
        mask=inside,
    )
    pushed = tl.dot(g1.to(OPERAND), tl.trans(v1).to(OPERAND), input_precision="ieee", out_dtype=WIDE)
    pushed += tl.dot(g2.to(OPERAND), tl.trans(v2).to(OPERAND), input_precision="ieee", out_dtype=WIDE)
    scores = weights * (pushed - tl.sum(weights * pushed, 1)[:, None]) * factor
    scores = scores.to(dtype).to(OPERAND)
    a = tl.dot(scores, k1.to(OPERAND), input_precision="ieee", out_dtype=WIDE)
    b = tl.dot(scores, k2.to(OPERAND), input_precision="ieee", out_dtype=WIDE)
    tl.store(qkv + offset, a * c + b * s if ROPE else a, mask=inside)
    tl.store(qkv + offset + HALF, b * c - a * s if ROPE else b, mask=inside)
    scores = tl.trans(scores)
    a = tl.dot(scores, q1.to(OPERAND), input_precision="ieee", out_dtype=WIDE)
    b = tl.dot(scores, q2.to(OPERAND), input_precision="ieee", out_dtype=WIDE)
    tl.store(qkv + width + offset, a * c + b * s if ROPE else a, mask=inside)
    tl.store(qkv + width + offset + HALF, b * c - a * s if ROPE else b, mask=inside)


def _arguments(
    qkv: Tensor, heads: int, tables: tuple[Tensor, Tensor] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    length, rows, width = qkv.shape
    half = width // 3 // heads // 2
    cos, sin = tables or (qkv, qkv)
    numbers = (cos, sin, length, rows, heads, (2 * half) ** -0.5)
    options = {"LENGTH": power(length), "HALF": half, "ROPE": tables is not None, "WIDE": wide(qkv)}
    return numbers, options | {"OPERAND": operand(qkv), "num_warps": 8}


def attend(qkv: Tensor, heads: int, tables: tuple[Tensor, Tensor] | None, out: Tensor) -> Tensor:
    """Heads' outputs [L, B, D] from projections [L, B, 3 D]; `tables`: cosine and sine [L, ..., D / heads]."""
    numbers, options = _arguments(qkv, heads, tables)
    _forward[(qkv.shape[1] * heads,)](qkv, out, *numbers, **options)
    return out


def attend_backward(qkv: Tensor, heads: int, tables: tuple[Tensor, Tensor] | None, grad: Tensor) -> Tensor:
    """Overwrite the projections in `qkv` with their gradient, given that of the head outputs."""
    numbers, options = _arguments(qkv, heads, tables)
    _backward[(qkv.shape[1] * heads,)](qkv, grad, *numbers, **options)
    return qkv
