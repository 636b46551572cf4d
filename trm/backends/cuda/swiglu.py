"""SwiGLU (arXiv 2002.05202) over channels: the gate in the epilogue of the matrix product.

`gate_up` [N, 2 I] is the fused projection, with the gate in the first half of each row.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from trm.backends.cuda.common import operand, sigmoid, wide
from trm.backends.cuda.tiles import Tile


@triton.jit
def _product(
    x, gate_up_weight, hidden, gate_up, rows, inner: tl.constexpr, depth: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr, KEEP: tl.constexpr,
    WIDE: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    # neighbouring programs share rows of x and columns of the weights, which keeps both in the L2 cache
    across, down = tl.cdiv(inner, COLUMNS), tl.cdiv(rows, ROWS)
    index = tl.program_id(0)
    first = index // (GROUP * across) * GROUP
    height = tl.minimum(down - first, GROUP)
    block = first + index % (GROUP * across) % height
    row = block * ROWS + tl.arange(0, ROWS)
    column = index % (GROUP * across) // height * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, DEPTH)
    base = block.to(tl.int64) * ROWS
    x_pointer = x + base * depth + tl.arange(0, ROWS)[:, None] * depth + k[None, :]
    w_pointer = gate_up_weight + column[None, :] * depth + k[:, None]
    gate = tl.zeros((ROWS, COLUMNS), WIDE)
    up = tl.zeros((ROWS, COLUMNS), WIDE)
    for start in range(0, depth, DEPTH):
        left = (row[:, None] < rows) & (k[None, :] + start < depth)
        right = (column[None, :] < inner) & (k[:, None] + start < depth)
        a = tl.load(x_pointer + start, mask=left, other=0.0).to(OPERAND)
        b = tl.load(w_pointer + start, mask=right, other=0.0).to(OPERAND)
        c = tl.load(w_pointer + inner * depth + start, mask=right, other=0.0).to(OPERAND)
        gate = tl.dot(a, b, gate, input_precision="ieee", out_dtype=WIDE)
        up = tl.dot(a, c, up, input_precision="ieee", out_dtype=WIDE)
    inside = (row[:, None] < rows) & (column[None, :] < inner)
    if KEEP:
        offset = base * (2 * inner) + (tl.arange(0, ROWS)[:, None] * (2 * inner) + column[None, :])
        tl.store(gate_up + offset, gate, mask=inside)
        tl.store(gate_up + inner + offset, up, mask=inside)
    h = gate * sigmoid(gate) * up
    tl.store(hidden + base * inner + (tl.arange(0, ROWS)[:, None] * inner + column[None, :]), h, mask=inside)


def product(x: Tensor, weight: Tensor, hidden: Tensor, gate_up: Tensor | None, tile: Tile) -> Tensor:
    """hidden [N, I] = SwiGLU of x [N, D] with `weight` [2 I, D]; stores the projection in `gate_up` if given."""
    rows, depth = x.shape
    inner = hidden.shape[1]
    programs = (triton.cdiv(rows, tile["ROWS"]) * triton.cdiv(inner, tile["COLUMNS"]),)
    _product[programs](
        x, weight, hidden, hidden if gate_up is None else gate_up, rows, inner, depth, **tile, GROUP=8,
        KEEP=gate_up is not None, WIDE=wide(x), OPERAND=operand(x),
    )  # fmt: skip
    return hidden
