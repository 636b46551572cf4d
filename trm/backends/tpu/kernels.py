"""Pallas kernels for TPUs: each half of a block (mixing, residual, norm), forward and backward, within VMEM.

XLA writes a SwiGLU's inner activations to HBM and packs them into bfloat16 with several vector instructions per value;
on a v4 this takes four times as long as the matrix products (docs/tpu.md). These kernels read and write only the
residual stream. With `keep`, forward also returns what backward needs: for channel mixing the hidden values and the
derivatives, for attention its output and q, k and v. Token mixing recomputes its inner activations, which is faster
than reading them.

Shapes: B puzzles, L tokens padded to a multiple of 8, D width, I inner width, N = B * L rows of the residual stream
[N, D], which is bfloat16 and puzzle-major. Weights are bfloat16; gate and up are one matrix, as are q, k and v. The
gate's are halved: with h = gate / 2, silu(gate) = h + h tanh(h) needs one transcendental instruction. Padded tokens are
zero and stay zero in the MLP; in attention they are masked. Each core runs half of the grid: the outer dimension has
size two if sums stay in VMEM.

Backward takes the sum before the norm (t, bfloat16) and returns the gradient of the input, token mixing also those of
its weights. The other weight gradients follow from what the kernels return: of few rows by a kernel, else by XLA.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from trm.study.activations import LANES

EPS = 1e-5  # trm.model.definition.EPS, without importing torch
MASKED = -1e30
CHUNK = 256
"""Inner units computed at a time, to limit register pressure."""


def dot(a: Any, b: Any, a_axis: int = 1, b_axis: int = 0) -> Any:
    """Product of bfloat16 matrices, contracted over the given axes and accumulated in float32."""
    return jax.lax.dot_general(a, b, (((a_axis,), (b_axis,)), ((), ())), preferred_element_type=jnp.float32)


def bf16(x: Any) -> Any:
    return x.astype(jnp.bfloat16)


def f32(x: Any) -> Any:
    return x.astype(jnp.float32)


def rms_norm(t: Any, axis: int, count: int) -> tuple[Any, Any]:
    """t / rms(t) and 1 / rms(t), with the mean over `count` values (padding is zero)."""
    scale = jax.lax.rsqrt((t * t).sum(axis, keepdims=True) * (1 / count) + EPS)
    return t * scale, scale


def rms_norm_backward(g: Any, t: Any, axis: int, count: int) -> Any:
    """Gradient of t, given that of t / rms(t)."""
    y, scale = rms_norm(t, axis, count)
    return (g - y * ((g * y).sum(axis, keepdims=True) * (1 / count))) * scale


def chunks(size: int, most: int) -> list[slice]:
    return [slice(i, min(i + most, size)) for i in range(0, size, most)]


def halves(inner: int, most: int) -> list[tuple[slice, slice]]:
    """Chunks of the inner units: their gates, and their ups."""
    return [(part, slice(inner + part.start, inner + part.stop)) for part in chunks(inner, most)]


def ahead(items: Iterable[Any], products: Callable[[Any], Any]) -> Iterator[tuple[Any, Any]]:
    """Each item with its products, which are traced one item ahead: so the compiler overlaps the matrix unit's work on
    one item with the vector unit's on another."""
    waiting: list[Any] = []
    for item in items:
        waiting.append((item, products(item)))
        if len(waiting) > 1:
            yield waiting.pop(0)
    yield from waiting


def load_input(streams: Sequence[Any], part: slice) -> Any:
    """A slice of the channels of the input: a stream, plus the (rounded) sum of the others."""
    first, *others = (ref[:, part] for ref in streams)
    return bf16(f32(first) + f32(load_input(streams[1:], part))) if others else first


def token_forward(length: int, keep: bool, added: int, *refs: Any) -> None:
    streams, (w, wd, y, *kept) = refs[: 1 + added], refs[1 + added :]
    inner = wd.shape[1]

    def products(part: slice) -> tuple[Any, ...]:
        x_LC = load_input(streams, part)
        return x_LC, dot(w[:inner], x_LC), dot(w[inner:], x_LC)

    for part, (x_LC, h, u) in ahead(chunks(y.shape[1], LANES * 2), products):
        t = f32(x_LC) + dot(wd[...], bf16((h + h * jnp.tanh(h)) * u))
        if keep:
            kept[0][:, part] = bf16(t)
            if added:
                kept[1][:, part] = x_LC
        y[:, part] = bf16(rms_norm(t, 0, length)[0])


def silu(h: Any) -> tuple[Any, Any]:
    """silu(2 h) and its derivative."""
    s = 1 + jnp.tanh(h)
    return h * s, s * (1 + h * (2 - s))


def token_backward(length: int, g: Any, t: Any, x: Any, w: Any, wd: Any, dx: Any, *sums: Any) -> None:
    inner = wd.shape[1]

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        for total in sums:
            total[...] = jnp.zeros(total.shape, jnp.float32)

    for part in chunks(x.shape[1], LANES * 2):
        x_LC = x[:, part]
        gt = rms_norm_backward(f32(g[:, part]), f32(t[:, part]), 0, length)
        gt_LC = bf16(gt)

        def products(parts: tuple[slice, slice], x_LC: Any = x_LC, gt_LC: Any = gt_LC) -> tuple[Any, ...]:
            gate, up = parts
            return dot(w[gate], x_LC), dot(w[up], x_LC), dot(wd[:, gate], gt_LC, 0, 0)

        for (gate, up), (h, u, d) in ahead(halves(inner, 128), products):
            value, slope = silu(h)
            hidden, dh, du = bf16(value * u), bf16(d * u * slope), bf16(d * value)
            gt += dot(w[gate], dh, 0, 0) + dot(w[up], du, 0, 0)
            sums[0][0, gate] += dot(dh, x_LC, 1, 1)
            sums[0][0, up] += dot(du, x_LC, 1, 1)
            sums[1][0, gate] += dot(hidden, gt_LC, 1, 1)
        dx[:, part] = bf16(gt)


def channel_forward(keep: bool, x: Any, w: Any, wd: Any, y: Any, *kept: Any) -> None:
    x_ND, inner = x[...], len(wd)
    t = f32(x_ND)

    def products(parts: tuple[slice, slice]) -> tuple[Any, Any]:
        return dot(x_ND, w[:, parts[0]]), dot(x_ND, w[:, parts[1]])

    for (part, second), (h, u) in ahead(halves(inner, CHUNK), products):
        gate, slope = silu(h)
        hidden = bf16(gate * u)
        if keep:
            kept[1][:, part] = hidden
            kept[2][:, part], kept[2][:, second] = bf16(u * slope), bf16(gate)
        t += dot(hidden, wd[part])
    if keep:
        kept[0][...] = bf16(t)
    y[...] = bf16(rms_norm(t, 1, t.shape[1])[0])


def channel_backward(g: Any, t: Any, slopes: Any, w: Any, wd: Any, dx: Any, gt: Any, dhu: Any) -> None:
    inner = len(wd)
    total = rms_norm_backward(f32(g[...]), f32(t[...]), 1, t.shape[1])
    gt_ND = bf16(total)
    gt[...] = gt_ND
    for part, second in halves(inner, CHUNK):
        d = dot(gt_ND, wd[part], 1, 1)
        dh, du = bf16(d * f32(slopes[:, part])), bf16(d * f32(slopes[:, second]))
        dhu[:, part], dhu[:, second] = dh, du
        total += dot(dh, w[:, part], 1, 1) + dot(du, w[:, second], 1, 1)
    dx[...] = bf16(total)


def weight_gradient(left: Any, right: Any, *sums: Any) -> None:
    *given, total = sums
    product = dot(left[...], right[...], 0, 0)
    total[...] = (given[0][...] + product if given else product).astype(total.dtype)


def rotate(x: Any, tables: tuple[Any, ...]) -> Any:
    """Rotary embeddings: x cos + (the other half of each head) sin. The first halves of a group's heads precede the
    second halves, so that rolling by half a register swaps them."""
    cos, sin = tables
    return x * cos + pltpu.roll(x, LANES // 2, 1) * sin


def rotate_backward(g: Any, tables: tuple[Any, ...]) -> Any:
    """Gradient of `rotate`'s input: the inverse rotation."""
    cos, sin = tables
    return g * cos - pltpu.roll(g, LANES // 2, 1) * sin


class Heads:
    """Attention of one group of heads, 128 channels wide, on one tile of rows.

    Scores are [keys, queries], so that the maximum and the sum over keys are rows of one register each. The matrix unit
    contracts over 128 channels, so a head is selected by zeroing the channels of the others. Each stage is traced for
    all puzzles and heads before the next, which the compiler overlaps better.
    """

    def __init__(self, length: int, head: int, padded: int):
        self.length, self.head, self.padded, self.count = length, head, padded, LANES // head
        self.lane = jax.lax.broadcasted_iota(jnp.int32, (padded, LANES), 1)

    def split(self, x_NK: Any) -> list[Any]:
        """The rows of each puzzle."""
        return [x_NK[r : r + self.padded] for r in range(0, x_NK.shape[0], self.padded)]

    def mask(self, i: int, rotated: bool) -> Any:
        """Which channels belong to head i; `rotated`: in the layout of queries and keys, otherwise of values."""
        return (self.lane % (LANES // 2) // (self.head // 2) if rotated else self.lane // self.head) == i

    def select(self, x: Any, rotated: bool) -> list[Any]:
        """For each head, x [L, 128] in bfloat16 with the channels of the other heads zeroed."""
        return [bf16(jnp.where(self.mask(i, rotated), f32(x), 0.0)) for i in range(self.count)]

    def merge(self, parts: list[Any], rotated: bool) -> list[Any]:
        """The inverse of `select`: per puzzle, each head's channels from its own part."""
        merged = []
        for n in range(0, len(parts), self.count):
            x = parts[n]
            for i in range(1, self.count):
                x = jnp.where(self.mask(i, rotated), parts[n + i], x)
            merged.append(x)
        return merged

    def exponentials(self, q: list[Any], k: list[Any]) -> list[Any]:
        """exp(score - its query's maximum) per puzzle and head: float32 [keys, queries]; `k`: from `select`."""
        scores = [self.mask_padding(dot(k_n, q[n // self.count], 1, 1)) for n, k_n in enumerate(k)]
        most = [s.max(0, keepdims=True) for s in scores]
        return [jnp.exp(s - m) for s, m in zip(scores, most, strict=True)]

    def mask_padding(self, scores: Any) -> Any:
        """Mask the padded keys, which come last."""
        full = self.length // 8 * 8
        if self.length == self.padded:
            return scores
        row = jax.lax.broadcasted_iota(jnp.int32, (self.padded - full, self.padded), 0)
        last = jnp.where(row < self.length - full, scores[full:], MASKED)
        return jnp.concatenate([scores[:full], last], 0) if full else last

    def attend(self, q: list[Any], k: list[Any], v: list[Any]) -> Any:
        """softmax(scores) @ values, bfloat16 [N, 128]; rows of ones beside the values yield the sums."""
        e = self.exponentials(q, [k_i for tile in k for k_i in self.select(tile, True)])
        v_KL = [bf16(f32(tile).T) for tile in v]
        ones = jnp.ones((16, self.padded), jnp.bfloat16)
        parts = []
        for n, e_n in enumerate(e):
            first = n % self.count * self.head
            values = v_KL[n // self.count][first : first + self.head]
            both = dot(jnp.concatenate([values, ones], 0), bf16(e_n))
            parts.append(both[: self.head] * (1 / both[self.head : self.head + 1]))
        tiles = [jnp.concatenate(parts[n : n + self.count], 0).T for n in range(0, len(parts), self.count)]
        return bf16(jnp.concatenate(tiles, 0))

    def gradients(self, q: list[Any], k: list[Any], v: list[Any], d: list[Any]) -> tuple[list[Any], ...]:
        """Gradients of q, k and v [L, 128] per puzzle, float32, given that of the output of `attend`."""
        k_i = [head for tile in k for head in self.select(tile, True)]
        v_i = [head for tile in v for head in self.select(tile, False)]
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
        return total, self.merge(dk, True), self.merge(dv, False)


def load_tables(refs: Sequence[Any]) -> tuple[Any, ...] | None:
    return tuple(ref[...] for ref in refs) if refs else None


def attention_forward(
    length: int, head: int, padded: int, rope: bool, keep: bool, added: int, *refs: Any
) -> None:
    streams, (w, wo, *rest) = refs[: 1 + added], refs[1 + added :]
    tables, (y, *kept) = load_tables(rest[: 2 * rope]), rest[2 * rope :]
    heads = Heads(length, head, padded)
    x_ND = load_input(streams, slice(None))
    t, width = f32(x_ND), x_ND.shape[1]
    for c in range(0, width, LANES):
        parts = [slice(place * width + c, place * width + c + LANES) for place in range(3)]
        q, k, v = (heads.split(dot(x_ND, w[:, part])) for part in parts)
        if tables is not None:
            q, k = ([rotate(tile, tables) for tile in tiles] for tiles in (q, k))
        q = [bf16(tile) for tile in q]
        attended = heads.attend(q, k, v)
        t += dot(attended, wo[parts[0]])
        if keep:
            kept[1][:, parts[0]] = attended
            for part, tiles in zip(parts, (q, k, v), strict=True):
                kept[2][:, part] = bf16(jnp.concatenate(tiles, 0))
    if keep:
        kept[0][...] = bf16(t)
        if added:
            kept[3][...] = x_ND
    y[...] = bf16(rms_norm(t, 1, width)[0])


def attention_backward(length: int, head: int, padded: int, rope: bool, *refs: Any) -> None:
    g, t, qkv, w, wo, *rest = refs
    tables, (dx, gt, dqkv) = load_tables(rest[: 2 * rope]), rest[2 * rope :]
    heads, width = Heads(length, head, padded), g.shape[1]
    total = rms_norm_backward(f32(g[...]), f32(t[...]), 1, width)
    gt_ND = bf16(total)
    gt[...] = gt_ND
    for c in range(0, width, LANES):
        parts = [slice(place * width + c, place * width + c + LANES) for place in range(3)]
        d = heads.split(bf16(dot(gt_ND, wo[parts[0]], 1, 1)))
        q, k, v = (heads.split(qkv[:, part]) for part in parts)
        dq, dk, dv = heads.gradients(q, k, v, d)
        if tables is not None:
            dq, dk = ([rotate_backward(tile, tables) for tile in tiles] for tiles in (dq, dk))
        for part, tiles in zip(parts, (dq, dk, dv), strict=True):
            d_NK = bf16(jnp.concatenate(tiles, 0))
            dqkv[:, part] = d_NK
            total += dot(d_NK, w[:, part], 1, 1)
    dx[...] = bf16(total)
