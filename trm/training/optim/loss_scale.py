"""Dynamic loss scaling for float16 in device tensors (arXiv 1710.03740)."""

import torch
from torch import Tensor

INITIAL = 2.0**15
GROWTH_INTERVAL = 1000  # good steps before the scale doubles
LARGEST = 2.0**24


def initial_scale(device: torch.device) -> Tensor:
    """[scale, good steps since its last change]."""
    return torch.tensor([INITIAL, 0.0], device=device)


def adjusted(scale: Tensor, finite: Tensor) -> Tensor:
    """The next state: the scale is halved after an overflow and doubled after GROWTH_INTERVAL good steps."""
    value, good = scale[0], scale[1] + 1
    grown = torch.where(good >= GROWTH_INTERVAL, (value * 2).clamp(max=LARGEST), value)
    good = torch.where(good >= GROWTH_INTERVAL, 0.0, good)
    return torch.stack((torch.where(finite, grown, value / 2), torch.where(finite, good, 0.0)))
