"""`data.hints: auto`: the number of extra clues is adapted until the model solves half of the rows.

The level is a device tensor, saved in checkpoints, and updated from sums over all workers. So hints depend neither on
resumes nor on the number of workers.
"""

import torch
from torch import Tensor

SPREAD = 8
"""Rows get a random number of hints in an interval of this width around the level."""
GAIN = 2.0
"""The level changes by half of this when a batch's worth of rows has finished and all or none are solved."""
TARGET = 0.5
"""Target share of solved rows among the finished ones."""


def initial_level(cells: int, device: torch.device) -> Tensor:
    """The initial level: a third of the cells."""
    return torch.tensor(cells / 3, device=device)


def hints(drawn: Tensor, level: Tensor | None) -> Tensor:
    """Number of hints of each row [B], given the batch's `hints`; `level` None: those are the numbers."""
    if level is None:
        return drawn
    return torch.floor(level + SPREAD * (drawn - 0.5) + 0.5).clamp(min=0)


def update(level: Tensor, solved: Tensor, finished: Tensor, cells: int) -> None:
    """Update the level after a step, in place.

    Args:
        level: 0-d; below 0 some rows still get hints, at the minimum of -SPREAD / 2 none.
        solved, finished: rows of this step, as shares of the batch.
        cells: upper bound of the level.
    """
    level.add_(GAIN * (TARGET * finished - solved)).clamp_(-SPREAD / 2, cells)
