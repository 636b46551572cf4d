"""Pallas kernels for TPU: each half of a block (mix, add, normalise) forward and backward, without leaving VMEM.

XLA writes the inner activations of a SwiGLU to HBM and packs them into bfloat16 at several vector instructions a
value; on a v4 that takes four times as long as the matrix products (docs/tpu.md). Here a tile of rows stays on
the core from the residual stream to the residual stream. With `keep`, forward also returns what backward needs: of the
channels the hidden values and their derivatives, of attention its result, queries, keys and values. The tokens' inner
activations are computed again: reading them would take longer.

Shapes: B rows, L tokens padded to a multiple of 8, D width, I inner width, N = B * L rows of the residual stream,
which is [N, D] bfloat16 here, puzzle after puzzle. Weights are bfloat16, gates halved: with h = gate / 2,
silu(gate) = h + h tanh(h), which is one transcendental instruction. Padded tokens are zero in the MLP and stay it; in
attention they are masked.
A core gets half of the grid: the outer dimension of size two where sums stay in VMEM, else the only one.
Backward takes the sum before the norm (t, bfloat16) and returns the gradient of the half's input; the products that
make the weights' gradients, except the tokens', are left to XLA, which is good at large products.
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


def silu(h: Any) -> tuple[Any, Any]:
    """silu(2 h) and its derivative."""
    s = 1 + jnp.tanh(h)
    return h * s, s * (1 + h * (2 - s))


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
        h, u, d = dot(wg[...], x_LC), dot(wu[...], x_LC), dot(wd[...], gt_LC, 0, 0)
        gate, slope = silu(h)
        hidden, dh, du = bf16(gate * u), bf16(d * u * slope), bf16(d * gate)
        dx[:, part] = bf16(gt + dot(wg[...], dh, 0, 0) + dot(wu[...], du, 0, 0))
        sums[0][0] += dot(dh, x_LC, 1, 1)
        sums[1][0] += dot(du, x_LC, 1, 1)
        sums[2][0] += dot(hidden, gt_LC, 1, 1)


def channel_forward(keep: bool, x: Any, wg: Any, wu: Any, wd: Any, y: Any, *kept: Any) -> None:
    x_ND, inner = x[...], wg.shape[1]
    t = f32(x_ND)
    for i in range(0, inner, CHUNK):
        part = slice(i, i + CHUNK)
        h, u = dot(x_ND, wg[:, part]), dot(x_ND, wu[:, part])
        gate, slope = silu(h)
        hidden = bf16(gate * u)
        if keep:
            kept[1][:, part], kept[2][:, part] = hidden, bf16(u * slope)
            kept[2][:, inner + i : inner + i + CHUNK] = bf16(gate)
        t += dot(hidden, wd[part])
    if keep:
        kept[0][...] = bf16(t)
    y[...] = bf16(normalised(t, 1, t.shape[1])[0])


def channel_backward(
    g: Any, t: Any, slopes: Any, wg: Any, wu: Any, wd: Any, dx: Any, gt: Any, dhu: Any
) -> None:
    inner = wg.shape[1]
    total = before_norm(f32(g[...]), f32(t[...]), 1, t.shape[1])
    gt_ND = bf16(total)
    gt[...] = gt_ND
    for i in range(0, inner, CHUNK):
        part, second = slice(i, i + CHUNK), slice(inner + i, inner + i + CHUNK)
        d = dot(gt_ND, wd[part], 1, 1)
        dh, du = bf16(d * f32(slopes[:, part])), bf16(d * f32(slopes[:, second]))
        dhu[:, part], dhu[:, second] = dh, du
        total += dot(dh, wg[:, part], 1, 1) + dot(du, wu[:, part], 1, 1)
    dx[...] = bf16(total)


def turned(x: Any, tables: tuple[Any, ...]) -> Any:
    """Rotary positions: x cos + (the other half of each head) sin. The first halves of a group's heads come before
    their second halves, so that one roll by half a register swaps them."""
    cos, sin = tables
    return x * cos + pltpu.roll(x, LANES // 2, 1) * sin


def turned_back(g: Any, tables: tuple[Any, ...]) -> Any:
    """Gradient of `turned`'s argument: the rotation by the opposite angle."""
    cos, sin = tables
    return g * cos - pltpu.roll(g, LANES // 2, 1) * sin


class Heads:
    """One group of heads, 128 channels wide, of one tile of rows: softmax per puzzle and head.

    Scores are [keys, queries], so that a query's largest score and its sum are rows, one register each. A head is
    picked by zeroing the other heads' channels, since the matrix unit contracts over 128. Each stage is written down
    for all puzzles and heads before the next: the compiler overlaps them better.
    """

    def __init__(self, length: int, head: int, padded: int):
        self.length, self.head, self.padded, self.count = length, head, padded, LANES // head
        self.lane = jax.lax.broadcasted_iota(jnp.int32, (padded, LANES), 1)

    def tiles(self, x_NK: Any) -> list[Any]:
        """Per puzzle."""
        return [x_NK[r : r + self.padded] for r in range(0, x_NK.shape[0], self.padded)]

    def has(self, i: int, turned: bool) -> Any:
        """Which channels are of head i: of queries and keys (turned), or of values."""
        return (self.lane % (LANES // 2) // (self.head // 2) if turned else self.lane // self.head) == i

    def picked(self, x: Any, turned: bool) -> list[Any]:
        """x [L, 128] for each head, with the channels of the others zeroed; bfloat16."""
        return [bf16(jnp.where(self.has(i, turned), f32(x), 0.0)) for i in range(self.count)]

    def joined(self, found: list[Any], turned: bool) -> list[Any]:
        """Per puzzle, each head's channels of its own result."""
        joined = []
        for n in range(0, len(found), self.count):
            x = found[n]
            for i in range(1, self.count):
                x = jnp.where(self.has(i, turned), found[n + i], x)
            joined.append(x)
        return joined

    def exponentials(self, q: list[Any], k: list[Any]) -> list[Any]:
        """Of the scores, less each query's largest, by puzzle and head: [keys, queries] float32. `k`: picked."""
        scores = [self.masked(dot(k_n, q[n // self.count], 1, 1)) for n, k_n in enumerate(k)]
        most = [s.max(0, keepdims=True) for s in scores]
        return [jnp.exp(s - m) for s, m in zip(scores, most, strict=True)]

    def masked(self, scores: Any) -> Any:
        """Padded keys, which are the last, get no weight."""
        whole = self.length // 8 * 8
        if self.length == self.padded:
            return scores
        row = jax.lax.broadcasted_iota(jnp.int32, (self.padded - whole, self.padded), 0)
        last = jnp.where(row < self.length - whole, scores[whole:], MASKED)
        return jnp.concatenate([scores[:whole], last], 0) if whole else last

    def attended(self, q: list[Any], k: list[Any], v: list[Any]) -> Any:
        """Softmax over the keys times the values: [N, 128] bfloat16. Rows of ones beside the values make the sums."""
        e = self.exponentials(q, [k_i for tile in k for k_i in self.picked(tile, True)])
        v_KL = [bf16(f32(tile).T) for tile in v]
        ones = jnp.ones((16, self.padded), jnp.bfloat16)
        parts = []
        for n, e_n in enumerate(e):
            first = n % self.count * self.head
            values = v_KL[n // self.count][first : first + self.head]
            both = dot(jnp.concatenate([values, ones], 0), bf16(e_n))
            parts.append(both[: self.head] * (1 / both[self.head : self.head + 1]))
        whole = [jnp.concatenate(parts[n : n + self.count], 0).T for n in range(0, len(parts), self.count)]
        return bf16(jnp.concatenate(whole, 0))

    def gradients(self, q: list[Any], k: list[Any], v: list[Any], d: list[Any]) -> tuple[list[Any], ...]:
        """Gradients of q, k and v [L, 128] from that of `attended`; float32, per puzzle."""
        k_i = [found for tile in k for found in self.picked(tile, True)]
        v_i = [found for tile in v for found in self.picked(tile, False)]
        e = self.exponentials(q, k_i)
        p = [e_n * (1 / e_n.sum(0, keepdims=True)) for e_n in e]
        dp = [dot(v_n, d[n // self.count], 1, 1) for n, v_n in enumerate(v_i)]
        ds = [
            bf16(p_n * (dp_n - (dp_n * p_n).sum(0, keepdims=True))) for p_n, dp_n in zip(p, dp, strict=True)
        ]
        dv = [dot(bf16(p_n), d[n // self.count]) for n, p_n in enumerate(p)]
        dk = [dot(ds_n, q[n // self.count]) for n, ds_n in enumerate(ds)]
        dq = [dot(ds_n, k_n, 0, 0) for ds_n, k_n in zip(ds, k_i, strict=True)]
        total = [sum(dq[n + 1 : n + self.count], dq[n]) for n in range(0, len(dq), self.count)]
        return total, self.joined(dk, True), self.joined(dv, False)


def tables_of(refs: Sequence[Any]) -> tuple[Any, ...] | None:
    return tuple(ref[...] for ref in refs) if refs else None


def attention_forward(
    length: int, head: int, padded: int, rope: bool, keep: bool, added: bool, *refs: Any
) -> None:
    streams, (wq, wk, wv, wo, *rest) = refs[: 1 + added], refs[1 + added :]
    tables, (y, *kept) = tables_of(rest[: 2 * rope]), rest[2 * rope :]
    heads = Heads(length, head, padded)
    x_ND = summed(streams, slice(None))
    t, width = f32(x_ND), x_ND.shape[1]
    for c in range(0, width, LANES):
        part = slice(c, c + LANES)
        q, k, v = (heads.tiles(dot(x_ND, w[:, part])) for w in (wq, wk, wv))
        if tables is not None:
            q, k = ([turned(tile, tables) for tile in tiles] for tiles in (q, k))
        q = [bf16(tile) for tile in q]
        attended = heads.attended(q, k, v)
        t += dot(attended, wo[part])
        if keep:
            kept[1][:, part] = attended
            for place, tiles in enumerate((q, k, v)):
                kept[2][:, place * width + c : place * width + c + LANES] = bf16(jnp.concatenate(tiles, 0))
    if keep:
        kept[0][...] = bf16(t)
        if added:
            kept[3][...] = x_ND
    y[...] = bf16(normalised(t, 1, width)[0])


def attention_backward(length: int, head: int, padded: int, rope: bool, *refs: Any) -> None:
    g, t, qkv, wq, wk, wv, wo, *rest = refs
    tables, (dx, gt, dqkv) = tables_of(rest[: 2 * rope]), rest[2 * rope :]
    heads, width = Heads(length, head, padded), g.shape[1]
    total = before_norm(f32(g[...]), f32(t[...]), 1, width)
    gt_ND = bf16(total)
    gt[...] = gt_ND
    for c in range(0, width, LANES):
        parts = [slice(place * width + c, place * width + c + LANES) for place in range(3)]
        d = heads.tiles(bf16(dot(gt_ND, wo[parts[0]], 1, 1)))
        q, k, v = (heads.tiles(qkv[:, part]) for part in parts)
        dq, dk, dv = heads.gradients(q, k, v, d)
        if tables is not None:
            dq, dk = ([turned_back(tile, tables) for tile in tiles] for tiles in (dq, dk))
        for part, tiles, w in zip(parts, (dq, dk, dv), (wq, wk, wv), strict=True):
            d_NK = bf16(jnp.concatenate(tiles, 0))
            dqkv[:, part] = d_NK
            total += dot(d_NK, w[:, parts[0]], 1, 1)
    dx[...] = bf16(total)
