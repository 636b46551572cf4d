"""Adam-atan2, AdamW and Lion with decoupled weight decay and EMA: one pass over the flat buffers, one kernel."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from trm.network.cuda.common import wide
from trm.network.parameters import ADAMW_EPS, Moments, Rates
from trm.study.schema import TrainingConfig

KINDS = {"adam_atan2": 0, "adamw": 1, "lion": 2}
BLOCK = 1024


@triton.jit
def _arctangent(a, b, WIDE: tl.constexpr):
    """atan2(a, b) for b >= 0, relative error below 2e-7: a polynomial in (small / large) squared.

    Coefficients: least squares at Chebyshev nodes of atan(t) / t over t^2 in [0, 1] (tests/network/cuda checks them).
    """
    high, low = tl.maximum(tl.abs(a), b), tl.minimum(tl.abs(a), b)
    t = tl.where(high > 0, low / tl.where(high > 0, high, 1.0), 0.0)
    z = t * t
    p = tl.zeros_like(z) + -6.6757885728e-04
    p = p * z + 4.7557406541e-03
    p = p * z + -1.5884218924e-02
    p = p * z + 3.3902244882e-02
    p = p * z + -5.4020995453e-02
    p = p * z + 7.2317804268e-02
    p = p * z + -8.9753996312e-02
    p = p * z + 1.1092192085e-01
    p = p * z + -1.4283847806e-01
    p = p * z + 1.9999903389e-01
    p = p * z + -3.3333331350e-01
    p = p * z + 9.9999999993e-01
    r = t * p
    r = tl.where(tl.abs(a) > b, 1.5707963267948966 - r, r)
    return tl.where(a < 0, -r, r)


@triton.jit
def _update(
    params, grads, m, v, ema, keep, step_size, v_scale, size, beta1, beta2, decay, eps,
    BLOCK: tl.constexpr, KIND: tl.constexpr, EMA: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    g = tl.load(grads + place, mask=inside, other=0.0)
    first = tl.load(m + place, mask=inside, other=0.0)
    p = tl.load(params + place, mask=inside, other=0.0).to(WIDE)
    moved = first + (g - first) * (1.0 - beta1)
    if KIND == 2:
        blend = first * beta1 + g * (1.0 - beta1)
        direction = tl.where(blend > 0, 1.0, tl.where(blend < 0, -1.0, 0.0))
        moved = first + (g - first) * (1.0 - beta2)
    else:
        second = tl.load(v + place, mask=inside, other=0.0) * beta2 + g * g * (1.0 - beta2)
        tl.store(v + place, second, mask=inside)
        deviation = tl.sqrt(second) * tl.load(v_scale)
        if KIND == 0:
            direction = _arctangent(moved, deviation, WIDE)
        else:
            direction = moved / (deviation + eps)
    tl.store(m + place, moved, mask=inside)
    p = p * tl.load(keep) - direction * tl.load(step_size)
    tl.store(params + place, p, mask=inside)
    if EMA:
        rounded = p.to(params.dtype.element_ty).to(WIDE)
        average = tl.load(ema + place, mask=inside, other=0.0)
        tl.store(ema + place, average + (rounded - average) * decay, mask=inside)


def update(
    training: TrainingConfig,
    params: Tensor,
    grads: Tensor,
    state: Moments,
    ema: Tensor | None,
    r: Rates,
    chunk: int = 0,
) -> None:
    """As `trm.training.optim.flat.update`; `chunk` is ignored."""
    size = params.numel()
    second = state.v if state.v.numel() else state.m
    _update[(triton.cdiv(size, BLOCK),)](
        params, grads, state.m, second, params if ema is None else ema, r.keep, r.step_size, r.v_scale, size,
        training.beta1, training.beta2, 1.0 - training.ema, ADAMW_EPS, BLOCK=BLOCK, KIND=KINDS[training.optimizer],
        EMA=ema is not None, WIDE=wide(grads),
    )  # fmt: skip
