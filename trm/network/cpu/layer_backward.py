"""The backward of a mixing layer in two passes: the gradients of its input and hidden values, then of its weights.

The first pass leaves hidden values and the projection's gradient as panels (see `tile`), which the second multiplies by
the layer's input and its output's gradient; its sums over all rows stay in float32. Blocks of words and names as in
`layer_forward`.
"""

from __future__ import annotations

from numba import njit

from trm.network.cpu.kernels import ZERO, piece
from trm.network.cpu.lanes import WIDTH, lanes, put, put_pairs, sigmoid, spread, transpose
from trm.network.cpu.layer_forward import TILE, multiply, scratch
from trm.network.cpu.panels import interleave
from trm.network.cpu.simd import MATH, ONE, fetch, fetch_line, load, store, tensor, wide_tensor, word
from trm.network.cpu.tile import PANEL, add_product, as_wide, moved, product, tile_rows

__all__ = ["channel_layer_backward", "token_layer_backward", "weight_gradient"]

PAIRS = 256
"""Pairs of rows whose panel stays in the second cache while all rows of the other factor pass by."""

SLICE = 48
"""Hidden rows that the token mixing's backward takes before it transposes them; a multiple of 16."""


def token_backward_scratch(length: int, inner: int) -> int:
    """Bytes that a thread needs for `token_layer_backward`."""
    return 2 * (TILE + PANEL * (length + 1) + 2 * PANEL * inner + 3 * PANEL * SLICE)


def channel_backward_scratch(inner: int, block: int) -> int:
    """Bytes that a thread needs for `channel_layer_backward`."""
    return 2 * (TILE + 2 * block * inner)


def gradient_scratch(rows: int) -> int:
    """Bytes that a thread needs for `weight_gradient`."""
    return 4 * (rows + 3) * PANEL


@njit
def _backward(kept, at, sums, cell):
    """silu(gate) * up and the gradients of gate and up, from that of their product."""
    gate, up, grad = lanes(kept, at), lanes(kept, at + PANEL), lanes(sums, cell)
    s = sigmoid(gate)
    silu = gate * s
    return silu * up, grad * up * (s + silu * (spread(ONE) - s)), grad * silu


@njit
def _panel_place(i, j, width):
    """Where row i and column j, even, of a matrix of `width` columns lie in the panels of its transpose."""
    return i // PANEL * PANEL * width + j * PANEL + i % PANEL * 2


@njit(**MATH)
def token_layer_backward(block):
    """Gradient of x through SwiGLU alone from that of its result, a panel of columns at a time.

    Words from 7: gradient [L, M], back^T [I, L rounded up to even], into^T [L, 2I], gate_up as the forward left it,
    out [L, M]; panels of the transposed hidden values [I / 64, M / 2, 64, 2] and of the gradient of gate_up
    [2I / 64, M / 2, 64, 2]; L, M, I. A piece's rows are panels of columns; M divides by 32.
    """
    grads, back, into = tensor(block, 7), tensor(block, 8), tensor(block, 9)
    gate_up, out = tensor(block, 10), tensor(block, 11)
    hidden_panels, grad_panels = tensor(block, 12), tensor(block, 13)
    length, width, inner = word(block, 14), word(block, 15), word(block, 16)
    pairs = (length + 1) // 2
    memory = scratch(block)
    sums = as_wide(memory)
    panel = moved(memory, TILE)
    pushed = moved(panel, 2 * PANEL * pairs)
    slices = moved(pushed, 2 * PANEL * inner)
    start, stop = piece(block)
    while start >= 0:
        for group in range(start, stop):
            first = group * PANEL
            count = min(PANEL, width - first)
            interleave(grads, first, width, length, count, panel)
            kept = moved(gate_up, 2 * group * inner * PANEL)
            for origin in range(0, inner, SLICE):
                height = min(SLICE, inner - origin)
                done = 0
                while done < height:
                    rows = tile_rows(height - done)
                    fetch(kept, 2 * (origin + done) * PANEL, 2 * rows * PANEL)
                    for pair in range(done * PANEL // 2 // height, (done + rows) * PANEL // 2 // height):
                        for i in range(origin, origin + height, WIDTH):
                            to = _panel_place(i, first + 2 * pair, width)
                            fetch_line(hidden_panels, to)
                            fetch_line(grad_panels, to)
                            fetch_line(grad_panels, to + inner * width)
                    product(moved(back, (origin + done) * 2 * pairs), 2 * pairs, 2, rows, panel, pairs, sums)
                    for row in range(done, done + rows, 2):
                        for j in range(row * PANEL, (row + 1) * PANEL, WIDTH):
                            cell, at = j - done * PANEL, (2 * origin + row) * PANEL + j
                            h, g, u = _backward(kept, at, sums, cell)
                            h2, g2, u2 = _backward(kept, at + 2 * PANEL, sums, cell + PANEL)
                            put(slices, j, h)
                            put(slices, j + PANEL, h2)
                            put(slices, j + SLICE * PANEL, g)
                            put(slices, j + (SLICE + 1) * PANEL, g2)
                            put(slices, j + 2 * SLICE * PANEL, u)
                            put(slices, j + (2 * SLICE + 1) * PANEL, u2)
                            pair = (origin + row) // 2 * PANEL + j - row * PANEL
                            put_pairs(pushed, pair, g, g2)
                            put_pairs(pushed, pair + inner // 2 * PANEL, u, u2)
                    done += rows
                for i in range(0, height, WIDTH):
                    for j in range(0, count, 2 * WIDTH):
                        at, to = i * PANEL + j, _panel_place(origin + i, first + j, width)
                        transpose(moved(slices, at), PANEL, moved(hidden_panels, to), 2 * PANEL)
                        at += SLICE * PANEL
                        transpose(moved(slices, at), PANEL, moved(grad_panels, to), 2 * PANEL)
                        at, to = at + SLICE * PANEL, to + inner * width
                        transpose(moved(slices, at), PANEL, moved(grad_panels, to), 2 * PANEL)
            done = 0
            while done < length:
                rows = tile_rows(length - done)
                product(moved(into, done * 2 * inner), 2 * inner, 2, rows, pushed, inner, sums)
                for row in range(rows):
                    for j in range(0, count, WIDTH):
                        put(out, (done + row) * width + first + j, lanes(sums, row * PANEL + j))
                done += rows
        start, stop = piece(block)


@njit(**MATH)
def channel_layer_backward(block):
    """Gradient of x through SwiGLU alone from that of its result, a block of rows at a time.

    Words from 7: gradient [N, D], panels of back [I / 64, D / 2, 64, 2] and of into [D / 64, I, 64, 2], gate_up as the
    forward left it, out [N, D]; panels of the hidden values [I / 64, N / 2, 64, 2] and of the gradient of gate_up
    [2I / 64, N / 2, 64, 2], N / 2 rounded up; N, D, I, rows of a block (even). A piece's rows are blocks.
    """
    grads, back, into = tensor(block, 7), tensor(block, 8), tensor(block, 9)
    gate_up, out = tensor(block, 10), tensor(block, 11)
    hidden_panels, grad_panels = tensor(block, 12), tensor(block, 13)
    everything, width, inner, block_rows = word(block, 14), word(block, 15), word(block, 16), word(block, 17)
    size = (everything + 1) // 2 * 2 * PANEL
    panels = inner // PANEL
    memory = scratch(block)
    sums, pushed = as_wide(memory), moved(memory, TILE)
    nothing = spread(ZERO)
    start, stop = piece(block)
    while start >= 0:
        for group in range(start, stop):
            first = group * block_rows
            height = min(block_rows, everything - first)
            for p in range(panels):
                hidden, gates = moved(hidden_panels, p * size), moved(grad_panels, p * size)
                ups = moved(grad_panels, (panels + p) * size)
                done = 0
                while done < height:
                    rows = tile_rows(height - done)
                    g = moved(grads, (first + done) * width)
                    at = 2 * (first * inner + (p * height + done) * PANEL)
                    fetch(gate_up, at, 2 * rows * PANEL)
                    product(g, width, 2, rows, moved(back, p * width * PANEL), width // 2, sums)
                    for row in range(0, rows, 2):
                        for j in range(0, PANEL, WIDTH):
                            to, cell = (first + done + row) // 2 * PANEL + j, row * PANEL + j
                            local = (done + row) * 2 * inner + p * PANEL + j
                            h, g1, u = _backward(gate_up, at + row * PANEL + cell, sums, cell)
                            put(pushed, local, g1)
                            put(pushed, local + inner, u)
                            h2, g2, u2 = nothing, nothing, nothing
                            if row + 1 < rows:
                                local, cell = local + 2 * inner, cell + PANEL
                                h2, g2, u2 = _backward(gate_up, at + (row + 1) * PANEL + cell, sums, cell)
                                put(pushed, local, g2)
                                put(pushed, local + inner, u2)
                            put_pairs(hidden, to, h, h2)
                            put_pairs(gates, to, g1, g2)
                            put_pairs(ups, to, u, u2)
                    done += rows
            multiply(pushed, height, 2 * inner, into, moved(out, first * width), width, sums)
        start, stop = piece(block)


@njit(**MATH)
def weight_gradient(block):
    """total += a @ b, the sums over all pairs in float32.

    Words from 7: a, its step from group to group of 64 rows, from row to row and from pair to pair; b as panels
    [C / 64, pairs, 64, 2], pairs; wide total, its step from row to row and from column to column (one of them 1), rows
    R, columns C. A piece's rows are panels.
    """
    a, group_step, row_step, pair_step = tensor(block, 7), word(block, 8), word(block, 9), word(block, 10)
    b, pairs = tensor(block, 11), word(block, 12)
    total, down, across = wide_tensor(block, 13), word(block, 14), word(block, 15)
    rows, columns = word(block, 16), word(block, 17)
    sums = as_wide(scratch(block))
    start, stop = piece(block)
    while start >= 0:
        for p in range(start, stop):
            for begun in range(0, pairs, PAIRS):
                some = min(PAIRS, pairs - begun)
                panel = moved(b, (p * pairs + begun) * 2 * PANEL)
                for first in range(0, rows, PANEL):
                    height, done = min(PANEL, rows - first), 0
                    while done < height:
                        taken = tile_rows(height - done)
                        place = moved(a, first // PANEL * group_step + done * row_step + begun * pair_step)
                        to = moved(sums, (first + done) * PANEL)
                        if begun == 0:
                            product(place, row_step, pair_step, taken, panel, some, to)
                        else:
                            add_product(place, row_step, pair_step, taken, panel, some, to)
                        done += taken
            count = min(PANEL, columns - p * PANEL)
            if across == 1:
                for row in range(rows):
                    at = row * down + p * PANEL
                    for j in range(count):
                        store(total, at + j, load(total, at + j) + load(sums, row * PANEL + j))
            else:
                for j in range(count):
                    at = (p * PANEL + j) * across
                    for row in range(rows):
                        store(total, at + row, load(total, at + row) + load(sums, row * PANEL + j))
        start, stop = piece(block)
