"""Adam-atan2, AdamW and Lion with decoupled weight decay and EMA, in one pass over flat buffers.

The pass goes chunk by chunk, so that on a CPU every buffer is read once from memory and the intermediate results
stay in cache. Step-dependent numbers are 0-d tensors on the device: nothing recompiles from one step to the next.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trm.study.schema import TrainingConfig

ADAMW_EPS = 1e-8


class Moments(NamedTuple):
    """Optimiser state over the flat buffer; `v` is empty for Lion."""

    m: Tensor
    v: Tensor


class Rates(NamedTuple):
    """This step's numbers, 0-d float32 on the device."""

    keep: Tensor
    """1 - lr * weight_decay."""
    step_size: Tensor
    """lr / (1 - beta1^t); Lion: lr."""
    v_scale: Tensor
    """1 / sqrt(1 - beta2^t)."""


def moments(training: TrainingConfig, size: int, device: torch.device) -> Moments:
    """Zero moments for `size` parameters."""
    zeros = torch.zeros(size, device=device)
    return Moments(zeros, torch.zeros(0 if training.optimizer == "lion" else size, device=device))


def rates(training: TrainingConfig, step: Tensor, lr: Tensor) -> Rates:
    """The numbers of optimiser step `step` (from 1) at learning rate `lr`."""
    keep = 1 - lr * training.weight_decay
    one = torch.ones_like(step)
    if training.optimizer == "lion":
        return Rates(keep, lr, one)
    correction = 1 - torch.pow(one * training.beta1, step)
    return Rates(keep, lr / correction, torch.rsqrt(1 - torch.pow(one * training.beta2, step)))


def _direction(training: TrainingConfig, g: Tensor, m: Tensor, v: Tensor, r: Rates) -> Tensor:
    """Update the moments in place and return the direction that step_size multiplies."""
    if training.optimizer == "lion":
        direction = torch.lerp(g, m, training.beta1).sign_()
        m.lerp_(g, 1 - training.beta2)
        return direction
    m.lerp_(g, 1 - training.beta1)
    v.mul_(training.beta2).addcmul_(g, g, value=1 - training.beta2)
    deviation = v.sqrt().mul_(r.v_scale)
    if training.optimizer == "adam_atan2":
        return torch.atan2(m, deviation)
    return m / deviation.add_(ADAMW_EPS)


def update(
    training: TrainingConfig,
    params: Tensor,
    grads: Tensor,
    state: Moments,
    ema: Tensor | None,
    r: Rates,
    chunk: int,
) -> None:
    """One optimiser step and the EMA's, in place, over flat buffers of equal size.

    Adam-atan2 (arXiv 2407.05872): p = keep * p - step_size * atan2(m, v_scale * sqrt(v)). AdamW (1711.05101) divides
    by v_scale * sqrt(v) + 1e-8 instead; Lion (2302.06675) steps by the sign of beta1 * m + (1 - beta1) * g.
    Parameters in bfloat16 are updated in float32 and rounded once. `chunk`: elements a pass.
    """
    sizes = range(0, params.numel(), chunk)
    for start in sizes:
        part = slice(start, start + chunk)
        direction = _direction(training, grads[part], state.m[part], state.v[part], r)
        p = params[part]
        if p.dtype == torch.float32:
            p.mul_(r.keep).sub_(direction.mul_(r.step_size))
        else:
            wide = p.float().mul_(r.keep).sub_(direction.mul_(r.step_size))
            p.copy_(wide)
        if ema is not None:
            ema[part].lerp_(p.float(), 1 - training.ema)
