"""One optimiser step with decoupled weight decay and EMA, in one pass over flat buffers.

The pass is chunked, so that a CPU reads each buffer from memory once and keeps intermediate results in cache. Rates are
0-d tensors on the device, so that no step recompiles.
"""

from importlib import import_module

import torch
from torch import Tensor

from trm.model.parameters import Layout, Moments, Rates
from trm.study.schema import TrainingConfig
from trm.training.optim.base import Optimiser


def optimiser(training: TrainingConfig) -> Optimiser:
    """The optimiser named by `training.optimizer`."""
    instance: Optimiser = import_module(f"trm.training.optim.{training.optimizer}").OPTIMISER
    return instance


def moments(training: TrainingConfig, size: int, device: torch.device) -> Moments:
    """Zero moments for `size` parameters."""
    second = size if optimiser(training).second_moment else 0
    return Moments(torch.zeros(size, device=device), torch.zeros(second, device=device))


def update(
    training: TrainingConfig,
    params: Tensor,
    grads: Tensor,
    state: Moments,
    ema: Tensor | None,
    r: Rates,
    chunk: int,
    layout: Layout | None = None,
) -> None:
    """Update parameters, p = keep * p - step_size * direction, and EMA in place, in buffers of equal size.

    The EMA is not bias-corrected (`trm.training.state.bias_corrected`).

    bfloat16 parameters are updated in float32 and rounded once. `chunk`: elements per pass; `layout`: where
    the parameters are, for optimisers of matrices.
    """
    method = optimiser(training)
    for part, shape in method.parts(layout, params.numel(), chunk):
        g, m = grads[part].view(shape), state.m[part].view(shape)
        v = state.v[part].view(shape) if method.second_moment else state.v
        direction = method.direction(training, g, m, v, r).flatten()
        p = params[part]
        if p.dtype == torch.float32:
            p.mul_(r.keep).sub_(direction.mul_(r.step_size))
        else:
            wide = p.float().mul_(r.keep).sub_(direction.mul_(r.step_size))
            p.copy_(wide)
        if ema is not None:
            ema[part].lerp_(p.float(), 1 - training.ema)
