"""When a learning curve first reaches a target."""

from __future__ import annotations

import numpy as np
import pandas as pd


def first_reach(
    history: pd.DataFrame, target: float, metric: str = "eval/exact_accuracy", axis: str = "step"
) -> float | None:
    """Where a history first reaches `target`, linear between two measurements.

    Args:
        history: one run's rows, rising in `axis`.
        target: value of `metric` to reach.
        metric: column of shares.
        axis: column that is read off (step, rows, seconds).

    Returns:
        The place in units of `axis`; None if it is never reached or never measured.
    """
    if metric not in history:
        return None
    known = history[[axis, metric]].dropna()
    place, value = known[axis].to_numpy(float), known[metric].to_numpy(float)
    above = np.flatnonzero(value >= target)
    if not len(above):
        return None
    i = int(above[0])
    if i == 0 or value[i] == value[i - 1]:
        return float(place[i])
    part = (target - value[i - 1]) / (value[i] - value[i - 1])
    return float(place[i - 1] + part * (place[i] - place[i - 1]))
