"""Pallas kernels for TPU: each half of a block (mix, add, normalise) forward and backward, without leaving VMEM.

XLA writes the inner activations of a SwiGLU to HBM and packs them into bfloat16 at several vector instructions a
value; on a v4 that takes four times as long as the matrix products (docs/tpu.md). Here a tile of rows stays on
the core from the residual stream to the residual stream, and backward computes the inner activations again.

Shapes: B rows, L tokens padded to a multiple of 8, D width, I inner width, N = B * L rows of the residual stream,
which is [N, D] bfloat16 here, puzzle after puzzle. Weights are bfloat16, gates halved: with h = gate / 2,
silu(gate) = h + h tanh(h), which is one transcendental instruction. Padded tokens are zero in the MLP and stay it; in
attention they are masked.
A core gets half of the grid: the outer dimension of size two where sums stay in VMEM, else the only one.
Backward takes the sum before the norm (t, bfloat16) and returns the gradient of the half's input; the products that
make the channel weights' gradients are left to XLA, which is good at large products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

EPS = 1e-5  # of RMSNorm, as trm.network.definition.EPS
MASKED = -1e30
LANES = 128
CHUNK = 256
"""Inner units computed at once: their float32 values fit the registers better than all of them."""


def dot(a: Any, b: Any, a_axis: int = 1, b_axis: int = 0) -> Any:
    """Matrix product in float32 of bfloat16 operands, contracted over the axes given."""
    return jax.lax.dot_general(a, b, (((a_axis,), (b_axis,)), ((), ())), preferred_element_type=jnp.float32)


def bf16(x: Any) -> Any:
    return x.astype(jnp.bfloat16)


def f32(x: Any) -> Any:
    return x.astype(jnp.float32)


def normalised(t: Any, axis: int, count: int) -> tuple[Any, Any]:
    """t / rms(t) and 1 / rms(t); the mean is over `count` values (padding is zero)."""
    scale = jax.lax.rsqrt((t * t).sum(axis, keepdims=True) * (1 / count) + EPS)
    return t * scale, scale


def before_norm(g: Any, t: Any, axis: int, count: int) -> Any:
    """Gradient of t from that of t / rms(t)."""
    y, scale = normalised(t, axis, count)
    return (g - y * ((g * y).sum(axis, keepdims=True) * (1 / count))) * scale


def summed(streams: Sequence[Any], part: slice) -> Any:
    """Channels of the residual stream, which may come as a sum of two."""
    first, *second = (ref[:, part] for ref in streams)
    return bf16(f32(first) + f32(second[0])) if second else first


def token_forward(length: int, keep: bool, added: bool, *refs: Any) -> None:
    streams, (wg, wu, wd, y, *kept) = refs[: 1 + added], refs[1 + added :]
    for c in range(0, y.shape[1], LANES * 2):
        part = slice(c, min(c + LANES * 2, y.shape[1]))
        x_LC = summed(streams, part)
        h, u = dot(wg[...], x_LC), dot(wu[...], x_LC)
        t = f32(x_LC) + dot(wd[...], bf16((h + h * jnp.tanh(h)) * u))
        if keep:
            kept[0][:, part] = bf16(t)
            if added:
                kept[1][:, part] = x_LC
        y[:, part] = bf16(normalised(t, 0, length)[0])


def swiglu_gradients(h: Any, u: Any, d: Any) -> tuple[Any, Any, Any]:
    """Hidden values, and the gradients of h and u from that of the hidden values; bfloat16."""
    s = 1 + jnp.tanh(h)
    silu = h * s
    return bf16(silu * u), bf16(d * u * (s * (1 + h * (2 - s)))), bf16(d * silu)


def token_backward(
    length: int, g: Any, t: Any, x: Any, wg: Any, wu: Any, wd: Any, dx: Any, *sums: Any
) -> None:
    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        for total in sums:
            total[...] = jnp.zeros(total.shape, jnp.float32)

    for c in range(0, x.shape[1], LANES * 4):
        part = slice(c, min(c + LANES * 4, x.shape[1]))
        x_LC = x[:, part]
        gt = before_norm(f32(g[:, part]), f32(t[:, part]), 0, length)
        gt_LC = bf16(gt)
        found = swiglu_gradients(dot(wg[...], x_LC), dot(wu[...], x_LC), dot(wd[...], gt_LC, 0, 0))
        hidden, dh, du = found
        dx[:, part] = bf16(gt + dot(wg[...], dh, 0, 0) + dot(wu[...], du, 0, 0))
        sums[0][0] += dot(dh, x_LC, 1, 1)
        sums[1][0] += dot(du, x_LC, 1, 1)
        sums[2][0] += dot(hidden, gt_LC, 1, 1)


def channel_forward(keep: bool, x: Any, wg: Any, wu: Any, wd: Any, y: Any, *kept: Any) -> None:
    x_ND = x[...]
    t = f32(x_ND)
    for i in range(0, wg.shape[1], CHUNK):
        part = slice(i, i + CHUNK)
        h, u = dot(x_ND, wg[:, part]), dot(x_ND, wu[:, part])
        t += dot(bf16((h + h * jnp.tanh(h)) * u), wd[part])
    if keep:
        kept[0][...] = bf16(t)
    y[...] = bf16(normalised(t, 1, t.shape[1])[0])


def channel_backward(
    g: Any, t: Any, x: Any, wg: Any, wu: Any, wd: Any, dx: Any, gt: Any, hidden: Any, dhu: Any
) -> None:
    x_ND, inner = x[...], wg.shape[1]
    total = before_norm(f32(g[...]), f32(t[...]), 1, x.shape[1])
    gt_ND = bf16(total)
    gt[...] = gt_ND
    for i in range(0, inner, CHUNK):
        part = slice(i, i + CHUNK)
        found = swiglu_gradients(dot(x_ND, wg[:, part]), dot(x_ND, wu[:, part]), dot(gt_ND, wd[part], 1, 1))
        hidden[:, part], dhu[:, part], dhu[:, inner + i : inner + i + CHUNK] = found
        total += dot(found[1], wg[:, part], 1, 1) + dot(found[2], wu[:, part], 1, 1)
    dx[...] = bf16(total)


def turned(x: Any, tables: tuple[Any, ...]) -> Any:
    """Rotary positions: x cos + (the other half of each head) sin, the two halves by rolls along the lanes."""
    cos, low, high, half = tables
    return x * cos + pltpu.roll(x, LANES - half, 1) * low + pltpu.roll(x, half, 1) * high


def turned_back(g: Any, tables: tuple[Any, ...]) -> Any:
    """Gradient of `turned`'s argument."""
    cos, low, high, half = tables
    return g * cos + pltpu.roll(g * low, half, 1) + pltpu.roll(g * high, LANES - half, 1)


class Heads:
    """One group of heads, 128 channels wide, of one tile of rows: projections, and softmax per puzzle and head.

    A head is picked by zeroing the other heads' channels of keys and values: the matrix unit is 128 wide, and no lane
    has to move.
    """

    def __init__(self, length: int, head: int, padded: int, tables: tuple[Any, ...] | None):
        self.head, self.padded, self.tables = head, padded, tables
        lane = jax.lax.broadcasted_iota(jnp.int32, (padded, LANES), 1) // head
        self.masks = [lane == i for i in range(LANES // head)]
        column = jax.lax.broadcasted_iota(jnp.int32, (padded, padded), 1)
        self.bias = jnp.where(column < length, 0.0, MASKED)

    def projected(self, x_ND: Any, w: Any, part: slice, turn: bool) -> list[Any]:
        """Per puzzle [L, 128] bfloat16."""
        wide = dot(x_ND, w[:, part])
        found = [wide[r : r + self.padded] for r in range(0, wide.shape[0], self.padded)]
        if turn and self.tables is not None:
            found = [turned(rows, self.tables) for rows in found]
        return [bf16(rows) for rows in found]

    def picked(self, x: Any, i: int) -> Any:
        """x with the channels of the other heads zeroed."""
        return x if len(self.masks) == 1 else jnp.where(self.masks[i], x, jnp.zeros_like(x))

    def softmax(self, q: Any, k: Any) -> Any:
        scores = dot(q, k, 1, 1) + self.bias
        e = jnp.exp(scores - scores.max(1, keepdims=True))
        return e * (1 / e.sum(1, keepdims=True))


def tables_of(refs: tuple[Any, ...], head: int) -> tuple[Any, ...] | None:
    return (*(ref[...] for ref in refs), head // 2) if refs else None


def attention_forward(
    length: int, head: int, padded: int, rope: bool, keep: bool, added: bool, *refs: Any
) -> None:
    streams, (wq, wk, wv, wo, *rest) = refs[: 1 + added], refs[1 + added :]
    tables, outputs = rest[: 3 * rope], rest[3 * rope :]
    heads = Heads(length, head, padded, tables_of(tuple(tables), head))
    x_ND = summed(streams, slice(None))
    t = f32(x_ND)
    for c in range(0, x_ND.shape[1], LANES):
        part = slice(c, c + LANES)
        q, k = heads.projected(x_ND, wq, part, True), heads.projected(x_ND, wk, part, True)
        v = heads.projected(x_ND, wv, part, False)
        attended = [
            sum(
                dot(bf16(heads.softmax(q[b], heads.picked(k[b], i))), heads.picked(v[b], i))
                for i in range(len(heads.masks))
            )
            for b in range(len(q))
        ]
        t += dot(bf16(jnp.concatenate(attended, 0)), wo[part])
    if keep:
        outputs[1][...] = bf16(t)
        if added:
            outputs[2][...] = x_ND
    outputs[0][...] = bf16(normalised(t, 1, t.shape[1])[0])


def attention_backward(length: int, head: int, padded: int, rope: bool, *refs: Any) -> None:
    g, t, x, wq, wk, wv, wo, *rest = refs
    tables, (dx, gt, attended, dqkv) = rest[: 3 * rope], rest[3 * rope :]
    heads = Heads(length, head, padded, tables_of(tuple(tables), head))
    width, x_ND = x.shape[1], x[...]
    total = before_norm(f32(g[...]), f32(t[...]), 1, width)
    gt_ND = bf16(total)
    gt[...] = gt_ND
    for c in range(0, width, LANES):
        part = slice(c, c + LANES)
        q, k = heads.projected(x_ND, wq, part, True), heads.projected(x_ND, wk, part, True)
        v = heads.projected(x_ND, wv, part, False)
        wide = dot(gt_ND, wo[part], 1, 1)
        outs: list[list[Any]] = [[], [], [], []]
        for b in range(len(q)):
            d_LK = bf16(wide[b * padded : (b + 1) * padded])
            o = dq = dk = dv = 0.0
            for i in range(len(heads.masks)):
                k_i, v_i = heads.picked(k[b], i), heads.picked(v[b], i)
                p = heads.softmax(q[b], k_i)
                p_QS = bf16(p)
                o += dot(p_QS, v_i)
                dp = dot(d_LK, v_i, 1, 1)
                ds_QS = bf16(p * (dp - (dp * p).sum(1, keepdims=True)))
                dq += dot(ds_QS, k_i)
                dk += heads.picked(dot(ds_QS, q[b], 0, 0), i)
                dv += heads.picked(dot(p_QS, d_LK, 0, 0), i)
            if heads.tables is not None:
                dq, dk = turned_back(dq, heads.tables), turned_back(dk, heads.tables)
            for found, value in zip(outs, (o, dq, dk, dv), strict=True):
                found.append(value)
        o, dq, dk, dv = (bf16(jnp.concatenate(found, 0)) for found in outs)
        attended[:, part] = o
        for place, (d_NK, w) in enumerate(((dq, wq), (dk, wk), (dv, wv))):
            dqkv[:, place * width + c : place * width + c + LANES] = d_NK
            total += dot(d_NK, w[:, part], 1, 1)
    dx[...] = bf16(total)
