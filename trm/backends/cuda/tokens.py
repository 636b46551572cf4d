"""Token mixing of a block in one kernel: y = rms_norm(x + SwiGLU(x)) over the token axis of x [L, M].

A program holds whole columns (all tokens of some channels), so the projection of width 2 I never reaches memory. The
token axis is padded to a power of two inside the kernel only. Backward recomputes the projection.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from trm.backends.cuda.common import operand, power, sigmoid, wide
from trm.backends.cuda.tiles import Tile
from trm.model.definition import EPS


@triton.jit
def _forward(
    x, gate_up_weight, down_weight, y, scale, length, columns, inner: tl.constexpr,
    LENGTH: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, EPS: tl.constexpr, SCALE: tl.constexpr,
    WIDE: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    token = tl.arange(0, LENGTH)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    i = tl.arange(0, INNER)
    # fewer than 2^31 elements: 128 tokens, 16 million columns
    offset = token[:, None] * columns + column[None, :]
    inside = (token[:, None] < length) & (column[None, :] < columns)
    tile = tl.load(x + offset, mask=inside, other=0.0)
    total = tile.to(WIDE)
    tile = tile.to(OPERAND)
    for start in range(0, inner, INNER):
        to_gate = tl.load(gate_up_weight + (start + i)[:, None] * LENGTH + token[None, :]).to(OPERAND)
        to_up = tl.load(gate_up_weight + (inner + start + i)[:, None] * LENGTH + token[None, :]).to(OPERAND)
        back = tl.load(down_weight + token[:, None] * inner + (start + i)[None, :]).to(OPERAND)
        gate = tl.dot(to_gate, tile, input_precision="ieee", out_dtype=WIDE)
        up = tl.dot(to_up, tile, input_precision="ieee", out_dtype=WIDE)
        hidden = gate * sigmoid(gate) * up
        total = tl.dot(back, hidden.to(OPERAND), total, input_precision="ieee", out_dtype=WIDE)
    inverse = 1.0 / tl.sqrt(tl.sum(total * total, 0) / length + EPS)
    tl.store(y + offset, total * inverse[None, :], mask=inside)
    if SCALE:
        tl.store(scale + column, inverse, mask=column < columns)


@triton.jit
def _backward(
    x, gate_up_weight, down_weight, y, scale, grad, total_grad, gate_up_grad, hidden, out, length, columns,
    inner: tl.constexpr,
    LENGTH: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, WIDE: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    token = tl.arange(0, LENGTH)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    i = tl.arange(0, INNER)
    # fewer than 2^31 elements: 128 tokens, 16 million columns
    offset = token[:, None] * columns + column[None, :]
    inside = (token[:, None] < length) & (column[None, :] < columns)
    g = tl.load(grad + offset, mask=inside, other=0.0).to(WIDE)
    normed = tl.load(y + offset, mask=inside, other=0.0).to(WIDE)
    inverse = tl.load(scale + column, mask=column < columns, other=0.0)
    total = inverse[None, :] * (g - normed * (tl.sum(g * normed, 0) / length)[None, :])
    tl.store(total_grad + offset, total, mask=inside)
    pushed = total.to(total_grad.dtype.element_ty).to(OPERAND)
    tile = tl.load(x + offset, mask=inside, other=0.0).to(OPERAND)
    narrow = (column < columns)[None, :]
    for start in range(0, inner, INNER):
        to_gate = tl.load(gate_up_weight + (start + i)[:, None] * LENGTH + token[None, :]).to(OPERAND)
        to_up = tl.load(gate_up_weight + (inner + start + i)[:, None] * LENGTH + token[None, :]).to(OPERAND)
        back = tl.load(down_weight + token[:, None] * inner + (start + i)[None, :]).to(OPERAND)
        gate = tl.dot(to_gate, tile, input_precision="ieee", out_dtype=WIDE)
        up = tl.dot(to_up, tile, input_precision="ieee", out_dtype=WIDE)
        hidden_grad = tl.dot(tl.trans(back), pushed, input_precision="ieee", out_dtype=WIDE)
        sigma = sigmoid(gate)
        silu = gate * sigma
        gate_grad = (hidden_grad * up * sigma * (1.0 + gate - silu)).to(gate_up_grad.dtype.element_ty)
        up_grad = (hidden_grad * silu).to(gate_up_grad.dtype.element_ty)
        wide_start = columns.to(tl.int64) * start
        row = i[:, None] * columns + column[None, :]
        tl.store(hidden + wide_start + row, silu * up, mask=narrow)
        tl.store(gate_up_grad + wide_start + row, gate_grad, mask=narrow)
        tl.store(gate_up_grad + wide_start + columns.to(tl.int64) * inner + row, up_grad, mask=narrow)
        total = tl.dot(
            tl.trans(to_gate), gate_grad.to(OPERAND), total, input_precision="ieee", out_dtype=WIDE
        )
        total = tl.dot(tl.trans(to_up), up_grad.to(OPERAND), total, input_precision="ieee", out_dtype=WIDE)
    tl.store(out + offset, total, mask=inside)


def padded(gate_up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Zeroed buffers for weights [2 I, L] and [L, I] with a padded token axis, as `mix` and its backward read them."""
    length = power(down.shape[0])
    return gate_up.new_zeros(gate_up.shape[0], length), down.new_zeros(length, down.shape[1])


def mix(x: Tensor, gate_up: Tensor, down: Tensor, y: Tensor, scale: Tensor | None, tile: Tile) -> Tensor:
    """y [L, M] = rms_norm(x + SwiGLU(x)) over tokens; weights padded; `scale` [M]: 1 / rms."""
    length, columns = x.shape
    _forward[(triton.cdiv(columns, tile["COLUMNS"]),)](
        x, gate_up, down, y, x if scale is None else scale, length, columns, down.shape[1], LENGTH=down.shape[0],
        EPS=EPS, SCALE=scale is not None, WIDE=wide(x), OPERAND=operand(x), **tile,
    )  # fmt: skip
    return y


def mix_backward(
    x: Tensor, gate_up: Tensor, down: Tensor, y: Tensor, scale: Tensor, grad: Tensor,
    total_grad: Tensor, gate_up_grad: Tensor, hidden: Tensor, out: Tensor, tile: Tile,
) -> Tensor:  # fmt: skip
    """Gradient of x in `out`, given that of y; also, for the weight gradients, those of x + SwiGLU(x) [L, M], of the
    projection [2 I, M], and the hidden layer [I, M]. `out` may be `grad`."""
    length, columns = x.shape
    _backward[(triton.cdiv(columns, tile["COLUMNS"]),)](
        x, gate_up, down, y, scale, grad, total_grad, gate_up_grad, hidden, out, length, columns, down.shape[1],
        LENGTH=down.shape[0], WIDE=wide(x), OPERAND=operand(x), **tile,
    )  # fmt: skip
    return out
