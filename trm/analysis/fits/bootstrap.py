"""Hierarchical bootstrap: seeds resampled within each grid point.

With n seeds a point's residuals are too small by sqrt((n-1)/n); they are scaled back, without which 3
seeds cover only 82-88 % (benchmarks/fits.py measures both).
"""

from __future__ import annotations

import numpy as np

from trm.analysis.fits.forms import Array


def resample(log_y: Array, group: np.ndarray, count: int, seed: int, *, scaled: bool = True) -> Array:
    """Bootstrap data sets.

    Args:
        log_y: observations [N].
        group: the grid point of each observation [N].
        count: data sets B.
        seed: of the random numbers.
        scaled: multiply a point's residuals by sqrt(n/(n-1)).

    Returns:
        [B, N], in the order of log_y. A point with one seed borrows the residuals of all other points; if
        no point has two, nothing varies and the caller must say so.
    """
    rng = np.random.default_rng(seed)
    data = np.empty((count, len(log_y)))
    residuals, means = within(log_y, group, scaled=scaled)
    repeated = np.isin(group, [key for key in np.unique(group) if (group == key).sum() > 1])
    pool = residuals[repeated]
    for key in np.unique(group):
        rows = np.flatnonzero(group == key)
        source = residuals[rows] if len(rows) > 1 else pool
        if not len(source):
            data[:, rows] = log_y[rows]
            continue
        data[:, rows] = means[rows] + source[rng.integers(0, len(source), (count, len(rows)))]
    return data


def within(log_y: Array, group: np.ndarray, *, scaled: bool = True) -> tuple[Array, Array]:
    """Residuals about each point's mean (scaled by sqrt(n/(n-1))) and those means, both [N]."""
    residuals, means = np.zeros(len(log_y)), np.zeros(len(log_y))
    for key in np.unique(group):
        rows = group == key
        n = int(rows.sum())
        means[rows] = log_y[rows].mean()
        factor = np.sqrt(n / (n - 1)) if scaled and n > 1 else 1.0
        residuals[rows] = (log_y[rows] - means[rows]) * factor
    return residuals, means


def seed_spread(log_y: Array, group: np.ndarray) -> float | None:
    """Pooled standard deviation between seeds, in log units; None if no point has two seeds."""
    residuals, _ = within(log_y, group, scaled=False)
    points = np.unique(group)
    freedom = len(log_y) - len(points)
    return float(np.sqrt((residuals**2).sum() / freedom)) if freedom else None
