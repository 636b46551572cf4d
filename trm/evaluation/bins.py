"""Accuracy by difficulty: puzzles binned by clue count and rating."""

from typing import Any

import numpy as np

from trm.data.dataset import PuzzleSet
from trm.data.pool import doubling_bins

MOST = 12
"""Maximum number of bins of equal width."""


def binned(puzzles: PuzzleSet, blank: int | None) -> dict[str, tuple[np.ndarray, list[tuple[int, int]]]]:
    """For each property that varies among the puzzles: each puzzle's bin, and the bins' inclusive limits.

    Args:
        puzzles: one split; empty result for tasks with several examples per puzzle.
        blank: symbol of a blank cell; None: there are no clues to count.
    """
    if puzzles.groups != puzzles.examples:
        return {}
    values = {"rating": puzzles.ratings}
    if blank is not None:
        values["clues"] = (puzzles.inputs != blank).sum(axis=1)
    result = {}
    for name, value in values.items():
        if value is not None and len(np.unique(value)) > 1:
            # guesses start at 0 and have a long tail; lengths of paths do not
            limits = doubling_bins(value) if name == "rating" and value.min() <= 0 else _even(value)
            lows = np.array([low for low, _ in limits])
            result[name] = np.searchsorted(lows, value, side="right") - 1, limits
    return result


def _even(values: np.ndarray) -> list[tuple[int, int]]:
    """Bins of equal width, one value each if there are at most MOST."""
    low, high = int(values.min()), int(values.max())
    width = -(-(high - low + 1) // MOST)
    return [(first, min(high, first + width - 1)) for first in range(low, high + 1, width)]


def counts(right: np.ndarray, bins: np.ndarray, number: int) -> np.ndarray:
    """Numbers of puzzles and of correct ones per bin: float64 [2, number]."""
    return np.stack([np.bincount(bins, minlength=number), np.bincount(bins, weights=right, minlength=number)])


def rows(total: np.ndarray, limits: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """The non-empty bins in the format of the evaluation's JSON."""
    return [
        {"from": low, "to": high, "puzzles": int(puzzles), "correct": int(correct)}
        for (low, high), puzzles, correct in zip(limits, *total.tolist())
        if puzzles
    ]
