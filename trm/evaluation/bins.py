"""Accuracy by difficulty: puzzles sorted into bins of clue count, rating and source."""

from __future__ import annotations

from typing import Any

import numpy as np

from trm.data.dataset import PuzzleSet

MOST = 12
"""More distinct clue counts than this share bins."""


def binned(puzzles: PuzzleSet, blank: int | None) -> dict[str, tuple[np.ndarray, list[tuple[int, int]]]]:
    """For each property that differs between the puzzles: the bin of each one, and the bins' limits, both included.

    Args:
        puzzles: one split; of tasks with several examples a puzzle nothing is binned.
        blank: the symbol of an unknown cell; None: there are no clues to count.
    """
    if puzzles.groups != puzzles.examples:
        return {}
    values = {"rating": puzzles.ratings, "source": puzzles.sources}
    if blank is not None:
        values["clues"] = (puzzles.inputs != blank).sum(axis=1)
    found = {}
    for name, value in values.items():
        if value is not None and len(np.unique(value)) > 1:
            limits = _doubling(value) if name == "rating" else _even(value)
            lows = np.array([low for low, _ in limits])
            found[name] = np.searchsorted(lows, value, side="right") - 1, limits
    return found


def _even(values: np.ndarray) -> list[tuple[int, int]]:
    """Bins of equal width, of one value each where there are few."""
    low, high = int(values.min()), int(values.max())
    width = -(-(high - low + 1) // MOST)
    return [(first, min(high, first + width - 1)) for first in range(low, high + 1, width)]


def _doubling(values: np.ndarray) -> list[tuple[int, int]]:
    """Bins 0, 1, 2-3, 4-7, ..., below them -1 for unknown ratings where there are any."""
    limits = [(-1, -1)] if values.min() < 0 else []
    low, high = 0, 0
    while low <= values.max():
        limits.append((low, high))
        low, high = high + 1, 2 * high + 1
    return limits


def counts(right: np.ndarray, bins: np.ndarray, number: int) -> np.ndarray:
    """Puzzles and correct ones of each bin: float64 [2, number]."""
    return np.stack([np.bincount(bins, minlength=number), np.bincount(bins, weights=right, minlength=number)])


def rows(total: np.ndarray, limits: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """The bins that hold puzzles, as the evaluation's JSON has them."""
    return [
        {"from": low, "to": high, "puzzles": int(puzzles), "correct": int(correct)}
        for (low, high), puzzles, correct in zip(limits, *total.tolist())
        if puzzles
    ]
