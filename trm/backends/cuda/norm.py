"""Residual addition and RMSNorm (arXiv 1910.07467) in one pass, forward and backward, over channels or tokens.

Over channels a row [D] is normalised, over tokens a column of [L, M]: both are [rows, columns] tiles here, and AXIS
is the dimension of the mean.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from trm.backends.cuda.common import power, wide
from trm.model.definition import EPS

TILES = {1: 4096, 0: 8192}  # elements per program, by axis


@triton.jit
def _forward(
    x, mixed, y, scale, extra, into, rows, columns,
    AXIS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EPS: tl.constexpr, WIDE: tl.constexpr,
    KEEP: tl.constexpr, SCALE: tl.constexpr, INTO: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    row = tl.arange(0, ROWS) + (block * ROWS if AXIS == 1 else 0)
    column = tl.arange(0, COLUMNS) + (block * COLUMNS if AXIS == 0 else 0)
    # 64 bits for the tile's start, 32 within it: half the registers
    base = block.to(tl.int64) * ROWS * columns if AXIS == 1 else block * COLUMNS
    offset = tl.arange(0, ROWS)[:, None] * columns + tl.arange(0, COLUMNS)[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    total = tl.load(x + base + offset, mask=inside, other=0.0).to(WIDE)
    total += tl.load(mixed + base + offset, mask=inside, other=0.0).to(WIDE)
    length = rows if AXIS == 0 else columns
    inverse = 1.0 / tl.sqrt(tl.sum(total * total, AXIS) / length + EPS)
    out = total * tl.expand_dims(inverse, AXIS)
    if KEEP:
        tl.store(y + base + offset, out, mask=inside)
    if SCALE:
        if AXIS == 1:
            tl.store(scale + row, inverse, mask=row < rows)
        else:
            tl.store(scale + column, inverse, mask=column < columns)
    if INTO:
        rounded = out.to(y.dtype.element_ty).to(WIDE)
        added = rounded + tl.load(extra + base + offset, mask=inside, other=0.0).to(WIDE)
        tl.store(into + base + offset, added, mask=inside)


@triton.jit
def _backward(
    grad, y, scale, out, rows, columns,
    AXIS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    row = tl.arange(0, ROWS) + (block * ROWS if AXIS == 1 else 0)
    column = tl.arange(0, COLUMNS) + (block * COLUMNS if AXIS == 0 else 0)
    # 64 bits for the tile's start, 32 within it: half the registers
    base = block.to(tl.int64) * ROWS * columns if AXIS == 1 else block * COLUMNS
    offset = tl.arange(0, ROWS)[:, None] * columns + tl.arange(0, COLUMNS)[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    g = tl.load(grad + base + offset, mask=inside, other=0.0).to(WIDE)
    normed = tl.load(y + base + offset, mask=inside, other=0.0).to(WIDE)
    if AXIS == 1:
        inverse = tl.load(scale + row, mask=row < rows, other=0.0)
    else:
        inverse = tl.load(scale + column, mask=column < columns, other=0.0)
    length = rows if AXIS == 0 else columns
    inner = tl.sum(g * normed, AXIS) / length
    result = tl.expand_dims(inverse, AXIS) * (g - normed * tl.expand_dims(inner, AXIS))
    tl.store(out + base + offset, result, mask=inside)


def _tiles(x: Tensor, axis: int) -> tuple[tuple[int], dict[str, int]]:
    """Grid and tile of a [rows, columns] tensor; one program holds the whole `axis`."""
    rows, columns = x.shape
    if axis == 1:
        wide_tile = power(columns)
        high = max(1, TILES[1] // wide_tile)
        return (triton.cdiv(rows, high),), {"ROWS": high, "COLUMNS": wide_tile}
    high = power(rows)
    wide_tile = max(16, TILES[0] // high)
    return (triton.cdiv(columns, wide_tile),), {"ROWS": high, "COLUMNS": wide_tile}


def residual_norm(
    x: Tensor,
    mixed: Tensor,
    axis: int,
    y: Tensor | None,
    scale: Tensor | None = None,
    extra: Tensor | None = None,
    into: Tensor | None = None,
) -> None:
    """y = rms_norm(x + mixed) along `axis` of [rows, columns]; `scale`: 1 / rms, in at least float32.

    With `extra`, also writes into = y + extra; `y` may then be None.
    """
    if y is None and into is None:
        raise ValueError("residual_norm without an output")
    programs, tile = _tiles(x, axis)
    _forward[programs](
        x, mixed, x if y is None else y, x if scale is None else scale, x if extra is None else extra,
        x if into is None else into, *x.shape, AXIS=axis, **tile, EPS=EPS, WIDE=wide(x), KEEP=y is not None,
        SCALE=scale is not None, INTO=into is not None, num_warps=8,
    )  # fmt: skip


def norm_backward(grad: Tensor, y: Tensor, scale: Tensor, axis: int, out: Tensor) -> Tensor:
    """Gradient of the norm's input from that of its output, the output and 1 / rms; `out` may be `grad`."""
    programs, tile = _tiles(y, axis)
    _backward[programs](grad, y, scale, out, *y.shape, AXIS=axis, **tile, WIDE=wide(y), num_warps=8)
    return out


def scale_dtype(x: Tensor) -> torch.dtype:
    """The dtype of 1 / rms."""
    return torch.promote_types(x.dtype, torch.float32)
