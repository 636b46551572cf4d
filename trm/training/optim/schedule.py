"""Schedules of learning rate (computed on the device, so that no step recompiles) and exploration."""

import math

import torch
from torch import Tensor


def lr_factor(step: Tensor, warmup_steps: int, steps: int, min_ratio: float) -> Tensor:
    """Factor of the peak learning rate at `step` (0-d float32, from 1).

    Linear warm-up over `warmup_steps` (1 / warmup_steps at step 1), then half a cosine down to `min_ratio` at `steps`.
    """
    progress = ((step - warmup_steps) / max(1, steps - warmup_steps)).clamp(0, 1)
    decay = min_ratio + (1 - min_ratio) * 0.5 * (1 + torch.cos(math.pi * progress))
    return torch.where(step < warmup_steps, step / max(1, warmup_steps), decay)


def exploration_at(step: int, steps: int, first: float, final: float | None) -> float:
    """Probability of exploration at `step` (from 1): constant, or linear from `first` to `final` at `steps`."""
    if final is None or steps == 1:
        return first
    return first + (final - first) * (step - 1) / (steps - 1)
