"""One optimiser step with decoupled weight decay and EMA, in one pass over the buffers.

The pass is chunked, so that a CPU reads each buffer from memory once and keeps intermediate results in cache. Rates are
0-d tensors on the device, so that no step recompiles.
"""

from functools import partial
from importlib import import_module

import torch
from torch import Tensor

from trm.model.parameters import Buffer, Layout, Moments, Rates, mapped, tensors
from trm.study.schema import TrainingConfig
from trm.training.optim.base import Optimiser


def optimiser(training: TrainingConfig) -> Optimiser:
    """The optimiser named by `training.optimizer`."""
    instance: Optimiser = import_module(f"trm.training.optim.{training.optimizer}").OPTIMISER
    return instance


def moments(training: TrainingConfig, params: Buffer) -> Moments:
    """Zero moments for these parameters."""
    first, second = (mapped(partial(torch.zeros_like, dtype=torch.float32), params) for _ in range(2))
    return Moments(first, second if optimiser(training).second_moment else tensors(first)[0].new_zeros(0))


def update(
    training: TrainingConfig,
    params: Buffer,
    grads: Buffer,
    state: Moments,
    ema: Buffer | None,
    r: Rates,
    chunk: int,
    layout: Layout | None = None,
) -> None:
    """Update parameters, p = keep * p - step_size * direction, and EMA in place, in buffers of equal shape.

    The EMA is not bias-corrected (`trm.training.state.bias_corrected`).

    bfloat16 parameters are updated in float32 and rounded once. `chunk`: elements per pass; `layout`: where
    the parameters are, for optimisers of matrices.
    """
    method = optimiser(training)
    if layout is not None and not isinstance(params, Tensor):
        second = state.v if method.second_moment else [state.v] * len(params)
        rows = zip(params, grads, state.m, second, ema or [None] * len(params), strict=True)
        for (name, shape), (p, g, m, v, average) in zip(layout.shapes.items(), rows, strict=True):
            update(training, p, g, Moments(m, v), average, r, chunk, Layout({name: shape}))
        return
    for part, shape in method.parts(layout, params.shape, chunk):
        g, m = grads[part].view(shape), state.m[part].view(shape)
        v = state.v[part].view(shape) if method.second_moment else state.v
        p = params[part]
        direction = method.direction(training, g, m, v, r).view(p.shape)
        if p.dtype == torch.float32:
            p.mul_(r.keep).sub_(direction.mul_(r.step_size))
        else:
            wide = p.float().mul_(r.keep).sub_(direction.mul_(r.step_size))
            p.copy_(wide)
        if ema is not None:
            ema[part].lerp_(p.float(), 1 - training.ema)
