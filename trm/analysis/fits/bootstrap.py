"""Hierarchical bootstrap: seeds resampled within each grid point; runs of several points or whole seeds move together.

With n seeds a point's residuals are too small by sqrt((n-1)/n); they are scaled back. Percentiles of a bootstrap also
lack Student's factor for few observations; it is put back by widening the residuals by t/z, as in the expanded
percentile interval of Hesterberg 2015 (arXiv 1411.5279). And three seeds say little of their own spread, so half of the
draws come from the residuals of all points: spreads shrunk towards the common one, none of them lost.
benchmarks/fits.py measures how often the intervals hold the truth.
"""

import numpy as np
from scipy import stats

from trm.analysis.fits.forms import Array
from trm.analysis.stats import LEVEL, seed_spread

POOL = 0.5
"""Share of draws from the residuals of all points."""


def resample(log_y: Array, group: np.ndarray, count: int, seed: int) -> Array:
    """Bootstrap data sets.

    Args:
        log_y: observations [N].
        group: the grid point of each observation [N].
        count: data sets B.
        seed: of the random numbers.

    Returns:
        [B, N], in the order of log_y. A point with one seed borrows all its residuals from the other points; if no
        point has two, nothing varies and the caller must say so.
    """
    rng = np.random.default_rng(seed)
    residuals, means = within(log_y, group)
    keys, index, sizes = np.unique(group, return_inverse=True, return_counts=True)
    residuals *= student_factor(len(log_y), len(keys))
    common = residuals[sizes[index] > 1]
    if not len(common):
        return np.repeat(log_y[None], count, axis=0)
    data = means + common[rng.integers(0, len(common), (count, len(log_y)))]
    for number in np.flatnonzero(sizes > 1):
        rows = np.flatnonzero(index == number)
        shape = (count, len(rows))
        own = means[rows] + residuals[rows][rng.integers(0, len(rows), shape)]
        data[:, rows] = np.where(rng.random(shape) < POOL, data[:, rows], own)
    return data


def together(log_y: Array, group: np.ndarray, cluster: np.ndarray, count: int, seed: int) -> Array:
    """Bootstrap data sets [B, N] in which the observations of a cluster [N] move as a whole.

    Clusters are the runs that were measured at several points, or the seeds of a grid, whose runs share data, order and
    start. A cluster's residuals everywhere are multiplied by one normal number (the wild cluster bootstrap of Cameron,
    Gelbach & Miller 2008), at each point with Student's factor for as many observations as it has. A point with one has
    no residual of its own and draws from the spread of the others; if no point has two, nothing varies.
    """
    rng = np.random.default_rng(seed)
    residuals, means = within(log_y, group)
    keys, index, sizes = np.unique(group, return_inverse=True, return_counts=True)
    factors = np.array([student_factor(size, 1) for size in sizes])[index]
    names, member = np.unique(cluster, return_inverse=True)
    moved = rng.standard_normal((count, len(names)))[:, member] * factors * residuals
    alone = sizes[index] == 1
    spread = seed_spread(log_y, group) or 0.0
    borrowed = spread * student_factor(len(log_y), len(keys))
    moved[:, alone] = borrowed * rng.standard_normal((count, int(alone.sum())))
    return np.asarray(means + moved)


def student_factor(observations: int, points: int) -> float:
    """Student's quantile over the normal one, for as many degrees of freedom as the pooled seed spread has."""
    tail = 0.5 + LEVEL / 2
    freedom = observations - points
    return float(stats.t.ppf(tail, freedom) / stats.norm.ppf(tail)) if freedom > 0 else 1.0


def within(log_y: Array, group: np.ndarray) -> tuple[Array, Array]:
    """Residuals about each point's mean (scaled by sqrt(n/(n-1))) and those means, both [N]."""
    _, index, sizes = np.unique(group, return_inverse=True, return_counts=True)
    means = (np.bincount(index, log_y) / sizes)[index]
    factor = np.sqrt(sizes / np.maximum(sizes - 1, 1))
    return (log_y - means) * factor[index], means
