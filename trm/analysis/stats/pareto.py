"""Pareto frontiers: what nothing else beats in both cost and value."""

from __future__ import annotations

import numpy as np


def frontier(cost: np.ndarray, value: np.ndarray, *, higher_is_better: bool = True) -> np.ndarray:
    """Indices of the non-dominated points, by rising cost.

    A point is dominated if another costs no more and is at least as good, and is strictly better in one of
    the two.
    """
    gain = np.asarray(value, float) if higher_is_better else -np.asarray(value, float)
    order = np.lexsort((-gain, np.asarray(cost, float)))
    best, kept = -np.inf, []
    for index in order:
        if np.isfinite(gain[index]) and gain[index] > best:
            best = gain[index]
            kept.append(int(index))
    return np.array(kept, int)
