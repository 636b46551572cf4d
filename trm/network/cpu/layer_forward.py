"""A whole mixing layer in one pass: norm(x + SwiGLU(x)), block by block, so that hidden values never leave the cache.

Blocks of words as in `kernels`; word 4 counts the threads that came, 5 and 6 are the scratch memory and its bytes for
each of them. L tokens, M columns of the token mixing; N rows of the channel mixing, D width; I inner width. Only
bfloat16, only where `tile.AVAILABLE`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from trm.network.cpu.kernels import EPS, ZERO, piece
from trm.network.cpu.lanes import WIDTH, added, half, lanes, put, put_pairs, rounded, sigmoid, spread
from trm.network.cpu.panels import interleave
from trm.network.cpu.simd import MATH, ONE, claim, load, store, tensor, wide_tensor, word
from trm.network.cpu.tile import PANEL, ROWS, as_wide, moved, product, tile_rows

__all__ = ["channel_layer", "project", "token_layer"]

BLOCK = 96
"""About how many rows the channel mixing takes at a time."""
TILE = 2 * ROWS * PANEL
"""What the sums of a tile take, in elements of bfloat16."""


def token_scratch(length: int, inner: int) -> int:
    """Bytes that a thread needs for `token_layer`."""
    return 2 * (2 * TILE + 2 * PANEL * (length + 1) + PANEL * (length + 1 + inner))


def channel_scratch(width: int, inner: int, rows: int) -> int:
    """Bytes that a thread needs for `channel_layer` in blocks of `rows`."""
    return 2 * (2 * TILE + 2 * rows * width + rows * inner)


def project_scratch() -> int:
    """Bytes that a thread needs for `project`."""
    return 2 * TILE


@njit
def scratch(block):
    """This thread's own memory."""
    memory = tensor(block, 5)
    return moved(memory, claim(block, 4) * (word(block, 6) // 2))


@njit
def _keep(gates, ups, rows, kept, at):
    """Rows of 64 gates and 64 ups, in the order in which backward will read them."""
    for row in range(rows):
        for j in range(row * PANEL, (row + 1) * PANEL, WIDTH):
            put(kept, at + row * PANEL + j, lanes(gates, j))
            put(kept, at + (row + 1) * PANEL + j, lanes(ups, j))


@njit
def _hidden(gates, ups, at):
    """silu(gate) * up of the values that backward will see."""
    gate = rounded(lanes(gates, at))
    return gate * sigmoid(gate) * rounded(lanes(ups, at))


@njit(**MATH)
def token_layer(block):
    """out = norm(x + back @ SwiGLU(into @ x)) over the rows of x, a panel of columns at a time.

    Words from 7: x [L, M], into [2I, L rounded up to even], back [L, I], gate_up [M / 64, I, 2, 64] and whether to
    write it, out [L, M], wide scale [M], L, M, I. A piece's rows are panels.
    """
    xs, into, back = tensor(block, 7), tensor(block, 8), tensor(block, 9)
    kept, keeps, out, scales = tensor(block, 10), word(block, 11), tensor(block, 12), wide_tensor(block, 13)
    length, width, inner = word(block, 14), word(block, 15), word(block, 16)
    pairs = (length + 1) // 2
    memory = scratch(block)
    gates, ups = as_wide(memory), as_wide(moved(memory, TILE))
    total = as_wide(moved(memory, 2 * TILE))
    panel = moved(memory, 2 * TILE + 2 * PANEL * (length + 1))
    hidden = moved(panel, 2 * PANEL * pairs)
    start, stop = piece(block)
    while start >= 0:
        for group in range(start, stop):
            first = group * PANEL
            count = min(PANEL, width - first)
            interleave(xs, first, width, length, count, panel)
            done = 0
            while done < inner:
                rows = tile_rows(inner - done)
                product(moved(into, done * 2 * pairs), 2 * pairs, 2, rows, panel, pairs, gates)
                product(moved(into, (inner + done) * 2 * pairs), 2 * pairs, 2, rows, panel, pairs, ups)
                for row in range(0, rows, 2):
                    a, to = row * PANEL, (done + row) // 2 * PANEL
                    for j in range(a, a + PANEL, WIDTH):
                        put_pairs(hidden, to + j - a, _hidden(gates, ups, j), _hidden(gates, ups, j + PANEL))
                if keeps == 1:
                    _keep(gates, ups, rows, kept, (group * inner + done) * 2 * PANEL)
                done += rows
            sums = length * PANEL
            for j in range(0, PANEL, WIDTH):
                put(total, sums + j, spread(ZERO))
            done = 0
            while done < length:
                rows = tile_rows(length - done)
                product(moved(back, done * inner), inner, 2, rows, hidden, inner // 2, gates)
                for row in range(rows):
                    at, a = (done + row) // 2 * PANEL, (done + row) * PANEL
                    for j in range(0, count, WIDTH):
                        v = lanes(gates, row * PANEL + j) + half(panel, at + j, (done + row) % 2)
                        put(total, a + j, v)
                        put(total, sums + j, lanes(total, sums + j) + v * v)
                done += rows
            for j in range(count):
                scale = ONE / np.sqrt(load(total, sums + j) / np.float32(length) + EPS)
                store(total, sums + j, scale)
                store(scales, first + j, scale)
            for row in range(length):
                for j in range(0, count, WIDTH):
                    put(out, row * width + first + j, lanes(total, row * PANEL + j) * lanes(total, sums + j))
        start, stop = piece(block)


@njit(**MATH)
def channel_layer(block):
    """out = norm(x + SwiGLU(x @ into^T) @ back^T), a block of rows at a time.

    Words from 7: x [N, D], panels of into^T [2I / 64, D / 2, 64, 2] and back^T [D / 64, I / 2, 64, 2], gate_up (for
    each block [I / 64, rows, 2, 64]) and whether to write it, out [N, D], wide scale [N], N, D, I, rows of a block. A
    piece's rows are blocks.
    """
    xs, into, back = tensor(block, 7), tensor(block, 8), tensor(block, 9)
    kept, keeps, out, scales = tensor(block, 10), word(block, 11), tensor(block, 12), wide_tensor(block, 13)
    everything, width, inner, block_rows = word(block, 14), word(block, 15), word(block, 16), word(block, 17)
    panels = inner // PANEL
    memory = scratch(block)
    gates, ups = as_wide(memory), as_wide(moved(memory, TILE))
    total = as_wide(moved(memory, 2 * TILE))
    hidden = moved(memory, 2 * TILE + 2 * block_rows * width)
    start, stop = piece(block)
    while start >= 0:
        for group in range(start, stop):
            first = group * block_rows
            height = min(block_rows, everything - first)
            for p in range(panels):
                gate_panel = moved(into, p * width * PANEL)
                up_panel = moved(into, (panels + p) * width * PANEL)
                done = 0
                while done < height:
                    rows = tile_rows(height - done)
                    x = moved(xs, (first + done) * width)
                    product(x, width, 2, rows, gate_panel, width // 2, gates)
                    product(x, width, 2, rows, up_panel, width // 2, ups)
                    for row in range(rows):
                        to, a = (done + row) * inner + p * PANEL, row * PANEL
                        for j in range(0, PANEL, WIDTH):
                            put(hidden, to + j, _hidden(gates, ups, a + j))
                    if keeps == 1:
                        _keep(gates, ups, rows, kept, 2 * (first * inner + (p * height + done) * PANEL))
                    done += rows
            for origin in range(0, width, PANEL):
                count = min(PANEL, width - origin)
                done = 0
                while done < height:
                    rows = tile_rows(height - done)
                    back_panel = moved(back, origin * inner)
                    product(moved(hidden, done * inner), inner, 2, rows, back_panel, inner // 2, gates)
                    for row in range(rows):
                        at, to = (first + done + row) * width + origin, (done + row) * width + origin
                        for j in range(0, count, WIDTH):
                            put(total, to + j, lanes(gates, row * PANEL + j) + lanes(xs, at + j))
                    done += rows
            for row in range(height):
                a, to, squares = row * width, (first + row) * width, spread(ZERO)
                for j in range(a, a + width, WIDTH):
                    squares += lanes(total, j) * lanes(total, j)
                scale = ONE / np.sqrt(added(squares) / np.float32(width) + EPS)
                store(scales, first + row, scale)
                for j in range(0, width, WIDTH):
                    put(out, to + j, lanes(total, a + j) * spread(scale))
        start, stop = piece(block)


@njit
def multiply(a, height, inner, b, out, width, sums):
    """out [height, width] = a [height, inner] @ b, given as panels [width / 64, inner / 2, 64, 2]."""
    for origin in range(0, width, PANEL):
        count, done = min(PANEL, width - origin), 0
        while done < height:
            rows = tile_rows(height - done)
            product(moved(a, done * inner), inner, 2, rows, moved(b, origin * inner), inner // 2, sums)
            for row in range(rows):
                for j in range(0, count, WIDTH):
                    put(out, (done + row) * width + origin + j, lanes(sums, row * PANEL + j))
            done += rows


@njit(**MATH)
def project(block):
    """out = x @ b, a block of rows at a time.

    Words from 7: x [N, K], b as panels [C / 64, K / 2, 64, 2], out [N, C], N, K, C, rows of a block. A piece's rows are
    blocks.
    """
    xs, b, out = tensor(block, 7), tensor(block, 8), tensor(block, 9)
    everything, inner, width, block_rows = word(block, 10), word(block, 11), word(block, 12), word(block, 13)
    sums = as_wide(scratch(block))
    start, stop = piece(block)
    while start >= 0:
        for group in range(start, stop):
            first = group * block_rows
            height = min(block_rows, everything - first)
            multiply(moved(xs, first * inner), height, inner, b, moved(out, first * width), width, sums)
        start, stop = piece(block)
