"""`data.hints: auto`: a level of extra clues that follows the share of rows that the model solves.

The level lives on the device and in checkpoints and changes only by sums over all workers, so a resumed run, and one
with another number of workers, gives the same hints.
"""

from __future__ import annotations

import torch
from torch import Tensor

SPREAD = 8
"""Rows get a random number of hints within half of this around the level."""
GAIN = 2.0
"""Change of the level when as many rows as a batch have finished, all or none of them solved: half of this."""
TARGET = 0.5
"""Share of finished rows that should be solved."""


def initial_level(cells: int, device: torch.device) -> Tensor:
    """The level to start from: a third of the cells."""
    return torch.tensor(cells / 3, device=device)


def hints(drawn: Tensor, level: Tensor | None) -> Tensor:
    """Hints of each row [B] from the batch's `hints`; `level` None: the numbers themselves."""
    if level is None:
        return drawn
    return torch.floor(level + SPREAD * (drawn - 0.5) + 0.5).clamp(min=0)


def update(level: Tensor, solved: Tensor, finished: Tensor, cells: int) -> None:
    """Move the level after a step, in place.

    Args:
        level: 0-d; below 0 the upper half of its spread still gives hints, at -SPREAD / 2 no row gets any.
        solved, finished: rows of this step, as shares of the batch.
        cells: the level's upper bound.
    """
    level.add_(GAIN * (TARGET * finished - solved)).clamp_(-SPREAD / 2, cells)
