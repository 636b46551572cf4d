"""Matrices laid out as panels (see `tile`): by rows, whose pairs are woven together, or by columns."""

from __future__ import annotations

from numba import njit

from trm.network.cpu.kernels import ZERO, piece
from trm.network.cpu.lanes import WIDTH, lanes, put_pairs, spread, transpose
from trm.network.cpu.simd import MATH, tensor, word
from trm.network.cpu.tile import PANEL, moved

__all__ = ["column_panels", "row_panels"]


@njit
def interleave(source, at, stride, rows, columns, panel):
    """A panel of `rows` rows, the last without its partner where they are odd."""
    for pair in range(rows // 2):
        a = at + 2 * pair * stride
        for j in range(0, columns, WIDTH):
            put_pairs(panel, pair * PANEL + j, lanes(source, a + j), lanes(source, a + stride + j))
    if rows % 2 == 1:
        a = at + (rows - 1) * stride
        for j in range(0, columns, WIDTH):
            put_pairs(panel, rows // 2 * PANEL + j, lanes(source, a + j), spread(ZERO))


@njit(**MATH)
def row_panels(block):
    """Panels [C / 64, R / 2, 64, 2] of x [R, C]. Words from 4: x, panels, R, C. A piece's rows are panels."""
    xs, panels, rows, columns = tensor(block, 4), tensor(block, 5), word(block, 6), word(block, 7)
    size = (rows + 1) // 2 * 2 * PANEL
    start, stop = piece(block)
    while start >= 0:
        for p in range(start, stop):
            count = min(PANEL, columns - p * PANEL)
            interleave(xs, p * PANEL, columns, rows, count, moved(panels, p * size))
        start, stop = piece(block)


@njit(**MATH)
def column_panels(block):
    """Panels [R / 64, C / 2, 64, 2] of the transpose of x [R, C]. Words as `row_panels`; R divides by 16, C by 32."""
    xs, panels, rows, columns = tensor(block, 4), tensor(block, 5), word(block, 6), word(block, 7)
    start, stop = piece(block)
    while start >= 0:
        for p in range(start, stop):
            panel = moved(panels, p * columns * PANEL)
            for i in range(0, min(PANEL, rows - p * PANEL), WIDTH):
                row = moved(xs, (p * PANEL + i) * columns)
                for j in range(0, columns, 2 * WIDTH):
                    transpose(moved(row, j), columns, moved(panel, j * PANEL + 2 * i), 2 * PANEL)
        start, stop = piece(block)
