"""Fused elementwise passes between matrix products, each a function of one block of words.

Words 0-3 of a block: next piece, number of pieces, rows per piece, rows (see `launch`); from word 4 on, the arguments
that each kernel's docstring lists. N rows of the channel mixing, D width, I inner width; L tokens, M columns of the
token mixing; B batch rows, H heads, K channels of a head. Tensors are contiguous and in the block's dtype, except those
called wide (float32).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trm.backends.cpu.simd import (
    MATH,
    ONE,
    claim,
    exp,
    fetch_line,
    hidden,
    load,
    sigmoid,
    store,
    tensor,
    wide_tensor,
    word,
)

__all__ = [
    "accumulate",
    "accumulate_transposed",
    "gate",
    "gate_backward",
    "join_heads",
    "norm_columns",
    "norm_columns_backward",
    "norm_rows",
    "norm_rows_backward",
    "softmax",
    "softmax_backward",
    "split_heads",
    "split_heads_backward",
]

EPS = np.float32(1e-5)
ZERO = np.float32(0)
COLUMNS = 256
"""Columns that a norm over rows processes at a time, so that data read twice stay in the L1 cache."""


@njit
def rows_of(block):
    """Rows of the pieces that this thread takes, until none is left."""
    taken = claim(block, 0)
    while taken < word(block, 1):
        start = taken * word(block, 2)
        for row in range(start, min(start + word(block, 2), word(block, 3))):  # noqa: UP028 (numba lacks `yield from`)
            yield row
        taken = claim(block, 0)


@njit(**MATH)
def gate(block):
    """out = silu(gate) * up. Words: gate, up, out, columns, stride of the rows of gate and up."""
    gates, ups, out = tensor(block, 4), tensor(block, 5), tensor(block, 6)
    columns, stride = word(block, 7), word(block, 8)
    for row in rows_of(block):
        a, b = row * stride, row * columns
        for j in range(columns):
            x = load(gates, a + j)
            store(out, b + j, x * sigmoid(x) * load(ups, a + j))


@njit(**MATH)
def gate_backward(block):
    """In place: gate and up become their gradients, out (its gradient) becomes silu(gate) * up. Words as `gate`."""
    gates, ups, pushed = tensor(block, 4), tensor(block, 5), tensor(block, 6)
    columns, stride = word(block, 7), word(block, 8)
    for row in rows_of(block):
        a, b = hidden(row * stride), row * columns
        for j in range(columns):
            x, up, grad = load(gates, a + j), load(ups, a + j), load(pushed, b + j)
            s = sigmoid(x)
            silu = x * s
            store(pushed, b + j, silu * up)
            store(ups, a + j, grad * silu)
            store(gates, a + j, grad * up * (s + silu * (ONE - s)))


@njit(**MATH)
def norm_rows(block):
    """out = (x + y) * scale, scale = 1 / rms(x + y) of each row. Words: x, y, out [N, D], wide scale [N], D."""
    xs, ys, out, scales = tensor(block, 4), tensor(block, 5), tensor(block, 6), wide_tensor(block, 7)
    width = word(block, 8)
    for row in rows_of(block):
        at, total = row * width, ZERO
        for j in range(at, at + width):
            v = load(xs, j) + load(ys, j)
            total += v * v
        scale = ONE / np.sqrt(total / np.float32(width) + EPS)
        store(scales, row, scale)
        for j in range(at, at + width):
            store(out, j, (load(xs, j) + load(ys, j)) * scale)


@njit(**MATH)
def _cleared(group, width, sums):
    """First column and size of a group; sets its sums to 0."""
    first = group * COLUMNS
    count = min(COLUMNS, width - first)
    for j in range(first, first + count):
        store(sums, j, ZERO)
    return first, count


@njit(**MATH)
def norm_columns(block):
    """`norm_rows` along columns; a row of a piece is a group of COLUMNS.

    Words: x, y, out [L, M], wide scale [M], L, M.
    """
    xs, ys, out, scales = tensor(block, 4), tensor(block, 5), tensor(block, 6), wide_tensor(block, 7)
    length, width = word(block, 8), word(block, 9)
    for group in rows_of(block):
        first, count = _cleared(group, width, scales)
        for row in range(length):
            at = row * width + first
            for j in range(count):
                v = load(xs, at + j) + load(ys, at + j)
                store(scales, first + j, load(scales, first + j) + v * v)
        for j in range(count):
            mean = load(scales, first + j) / np.float32(length)
            store(scales, first + j, ONE / np.sqrt(mean + EPS))
        for row in range(length):
            at = row * width + first
            for j in range(count):
                v = load(xs, at + j) + load(ys, at + j)
                store(out, at + j, v * load(scales, first + j))


@njit(**MATH)
def norm_rows_backward(block):
    """out = (g - y * mean(g * y)) * scale with g = a + b. Words: a, b, y, out [N, D], wide scale [N], D."""
    first, second, ys, out = tensor(block, 4), tensor(block, 5), tensor(block, 6), tensor(block, 7)
    scales, width = wide_tensor(block, 8), word(block, 9)
    for row in rows_of(block):
        at, total = row * width, ZERO
        for j in range(at, at + width):
            total += (load(first, j) + load(second, j)) * load(ys, j)
        mean, scale = total / np.float32(width), load(scales, row)
        for j in range(at, at + width):
            store(out, j, (load(first, j) + load(second, j) - load(ys, j) * mean) * scale)


@njit(**MATH)
def norm_columns_backward(block):
    """`norm_rows_backward` along columns. Words: a, b, y, out [L, M], wide scale [M], L, M, wide scratch [M]."""
    first, second, ys, out = tensor(block, 4), tensor(block, 5), tensor(block, 6), tensor(block, 7)
    scales, sums = wide_tensor(block, 8), wide_tensor(block, 11)
    length, width = word(block, 9), word(block, 10)
    for group in rows_of(block):
        origin, count = _cleared(group, width, sums)
        for row in range(length):
            at = row * width + origin
            for j in range(count):
                product = (load(first, at + j) + load(second, at + j)) * load(ys, at + j)
                store(sums, origin + j, load(sums, origin + j) + product)
        for j in range(count):
            store(sums, origin + j, load(sums, origin + j) / np.float32(length))
        for row in range(length):
            at = row * width + origin
            for j in range(count):
                g = load(first, at + j) + load(second, at + j) - load(ys, at + j) * load(sums, origin + j)
                store(out, at + j, g * load(scales, origin + j))


@njit(**MATH)
def accumulate(block):
    """total += x over rows of `columns`. Words: wide total, x, columns."""
    total, xs, columns = wide_tensor(block, 4), tensor(block, 5), word(block, 6)
    for row in rows_of(block):
        for j in range(row * columns, (row + 1) * columns):
            store(total, j, load(total, j) + load(xs, j))


@njit(**MATH)
def accumulate_transposed(block):
    """total += x^T over the rows of `total`. Words: wide total [rows, columns], x [columns, rows], columns, rows."""
    total, xs, columns, height = wide_tensor(block, 4), tensor(block, 5), word(block, 6), word(block, 7)
    for row in rows_of(block):
        for j in range(columns):
            at = row * columns + j
            store(total, at, load(total, at) + load(xs, j * height + row))


@njit(**MATH)
def _turn(source, at, out, to, cos, sin, angle, half, scale):
    for j in range(half):
        a, b = load(source, at + j), load(source, at + half + j)
        c, s = load(cos, angle + j) * scale, load(sin, angle + j) * scale
        store(out, to + j, a * c - b * s)
        store(out, to + half + j, b * c + a * s)


@njit(**MATH)
def _turn_back(source, at, out, to, cos, sin, angle, half, scale):
    for j in range(half):
        a, b = load(source, at + j), load(source, at + half + j)
        c, s = load(cos, angle + j) * scale, load(sin, angle + j) * scale
        store(out, to + j, a * c + b * s)
        store(out, to + half + j, b * c - a * s)


@njit(**MATH)
def _move(source, at, out, to, count):
    for j in range(count):
        store(out, to + j, load(source, at + j))


@njit(**MATH)
def split_heads(block):
    """q and k rotated by position, q over sqrt(K), and v, as [B, H, L, K] from the projection's [L * B, 3 * H * K].

    Words: projection, q, k, v, wide cos, wide sin [L, K / 2], B, H, K, L. A row is one of L * B.
    """
    qkv, q, k, v = tensor(block, 4), tensor(block, 5), tensor(block, 6), tensor(block, 7)
    cos, sin = wide_tensor(block, 8), wide_tensor(block, 9)
    batch, heads, width, length = word(block, 10), word(block, 11), word(block, 12), word(block, 13)
    half, all_heads, scale = width // 2, heads * width, ONE / np.sqrt(np.float32(width))
    for row in rows_of(block):
        token, b = row // batch, row % batch
        for h in range(heads):
            at, to = 3 * row * all_heads + h * width, ((b * heads + h) * length + token) * width
            for ahead in range(to + width, to + 2 * width, 32):
                fetch_line(q, ahead)
                fetch_line(k, ahead)
                fetch_line(v, ahead)
            _turn(qkv, at, q, to, cos, sin, token * half, half, scale)
            _turn(qkv, at + all_heads, k, to, cos, sin, token * half, half, ONE)
            _move(qkv, at + 2 * all_heads, v, to, width)


@njit(**MATH)
def split_heads_backward(block):
    """Gradient of the projection from those of q, k and v; words as for `split_heads`."""
    qkv, q, k, v = tensor(block, 4), tensor(block, 5), tensor(block, 6), tensor(block, 7)
    cos, sin = wide_tensor(block, 8), wide_tensor(block, 9)
    batch, heads, width, length = word(block, 10), word(block, 11), word(block, 12), word(block, 13)
    half, all_heads, scale = width // 2, heads * width, ONE / np.sqrt(np.float32(width))
    for row in rows_of(block):
        token, b = row // batch, row % batch
        for h in range(heads):
            to, at = 3 * row * all_heads + h * width, ((b * heads + h) * length + token) * width
            _turn_back(q, at, qkv, to, cos, sin, token * half, half, scale)
            _turn_back(k, at, qkv, to + all_heads, cos, sin, token * half, half, ONE)
            _move(v, at, qkv, to + 2 * all_heads, width)


@njit(**MATH)
def join_heads(block):
    """[B, H, L, K] to [L * B, H * K], or the inverse if `back` is 1. Words: source, out, B, H, K, L, back."""
    source, out = tensor(block, 4), tensor(block, 5)
    batch, heads, width, length = word(block, 6), word(block, 7), word(block, 8), word(block, 9)
    back = word(block, 10) == 1
    for row in rows_of(block):
        token, b = row // batch, row % batch
        for h in range(heads):
            split, flat = ((b * heads + h) * length + token) * width, (row * heads + h) * width
            if back:
                _move(source, flat, out, split, width)
            else:
                _move(source, split, out, flat, width)


@njit(**MATH)
def softmax(block):
    """Softmax of each row, in place. Words: x, columns."""
    xs, columns = tensor(block, 4), word(block, 5)
    for row in rows_of(block):
        at = row * columns
        top = load(xs, at)
        for j in range(at, at + columns):
            top = max(top, load(xs, j))
        total = ZERO
        for j in range(at, at + columns):
            total += exp(load(xs, j) - top)
        scale = ONE / total
        for j in range(at, at + columns):
            store(xs, j, exp(load(xs, j) - top) * scale)


@njit(**MATH)
def softmax_backward(block):
    """In place: gradient of the softmax's input from that of its output. Words: gradient, output, columns."""
    grads, ys, columns = tensor(block, 4), tensor(block, 5), word(block, 6)
    for row in rows_of(block):
        at, total = row * columns, ZERO
        for j in range(at, at + columns):
            total += load(grads, j) * load(ys, j)
        for j in range(at, at + columns):
            store(grads, j, load(ys, j) * (load(grads, j) - total))
