"""Pareto frontiers."""

from __future__ import annotations

import numpy as np


def frontier(
    cost: np.ndarray, value: np.ndarray, *, higher_is_better: bool = True, tolerance: float = 0.0
) -> np.ndarray:
    """Indices of the points on the frontier, by rising cost.

    A point is dominated if another costs no more and is at least as good, and is strictly better in one of the two.
    Costs that differ by less than the relative `tolerance` count as equal: of such a group only the best value stays.
    """
    cost = np.asarray(cost, float)
    gain = np.asarray(value, float) if higher_is_better else -np.asarray(value, float)
    best, kept = -np.inf, list[int]()
    for index in np.lexsort((-gain, cost)):
        if not np.isfinite(gain[index]) or gain[index] <= best:
            continue
        best = gain[index]
        while kept and cost[index] <= cost[kept[-1]] * (1 + tolerance) and tolerance > 0:
            kept.pop()
        kept.append(int(index))
    return np.array(kept, int)
