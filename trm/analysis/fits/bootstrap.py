"""Hierarchical bootstrap: seeds resampled within each grid point; a run measured at several points moves as a whole.

With n seeds a point's residuals are too small by sqrt((n-1)/n); they are scaled back. Percentiles of a bootstrap also
lack Student's factor for few observations; it is put back by widening the residuals by t/z, as in the expanded
percentile interval of Hesterberg 2015 (arXiv 1411.5279). And three seeds say little of their own spread, so half of the
draws come from the residuals of all points: spreads shrunk towards the common one, none of them lost. What each of the
three is worth is measured by benchmarks/fits.py.
"""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from trm.analysis.fits.forms import Array
from trm.analysis.stats import LEVEL

POOL = 0.5
"""Share of draws from the residuals of all points."""


def resample(
    log_y: Array,
    group: np.ndarray,
    count: int,
    seed: int,
    *,
    scaled: bool = True,
    pool: float = POOL,
    runs: Sequence[str] = (),
) -> Array:
    """Bootstrap data sets.

    Args:
        log_y: observations [N].
        group: the grid point of each observation [N].
        count: data sets B.
        seed: of the random numbers.
        scaled: multiply a point's residuals by sqrt(n/(n-1)) and Student's factor.
        pool: share of draws from the residuals of all points; the others are from the point's own.
        runs: the run of each observation [N]. A run with several observations (one for each number of supervision
            steps) keeps its residuals together, as they are not independent; `pool` does not apply then.

    Returns:
        [B, N], in the order of log_y. A point with one seed borrows all its residuals from the other points; if no
        point has two, nothing varies and the caller must say so.
    """
    rng = np.random.default_rng(seed)
    residuals, means = within(log_y, group, scaled=scaled)
    if len(set(runs)) < len(runs):
        return means + _whole(residuals, group, np.array(runs), count, scaled, rng)
    keys, index, sizes = np.unique(group, return_inverse=True, return_counts=True)
    if scaled:
        residuals *= student_factor(len(log_y), len(keys))
    common = residuals[sizes[index] > 1]
    if not len(common):
        return np.repeat(log_y[None], count, axis=0)
    data = means + common[rng.integers(0, len(common), (count, len(log_y)))]
    for number in np.flatnonzero(sizes > 1):
        rows = np.flatnonzero(index == number)
        shape = (count, len(rows))
        own = means[rows] + residuals[rows][rng.integers(0, len(rows), shape)]
        data[:, rows] = np.where(rng.random(shape) < pool, data[:, rows], own)
    return data


def _whole(
    residuals: Array, group: np.ndarray, runs: np.ndarray, count: int, scaled: bool, rng: np.random.Generator
) -> Array:
    """Residuals [B, N] of whole runs, drawn among the runs that were measured at the same points."""
    alike: dict[tuple[int, ...], list[np.ndarray]] = {}
    for run in np.unique(runs):
        rows = np.flatnonzero(runs == run)
        rows = rows[np.argsort(group[rows], kind="stable")]
        alike.setdefault(tuple(group[rows]), []).append(rows)
    found = np.zeros((count, len(residuals)))
    for members in alike.values():
        places = np.array(members)
        factor = student_factor(len(places), 1) if scaled else 1.0
        picks = rng.integers(0, len(places), (count, len(places)))
        found[:, places] = factor * residuals[places][picks]
    return found


def by_seed(log_y: Array, group: np.ndarray, seeds: np.ndarray, count: int, seed: int) -> Array:
    """Bootstrap data sets [B, N] in which every seed moves as a whole, as seeds share their data, order and start over
    grid points: its residuals everywhere times one normal number (the wild cluster bootstrap of Cameron, Gelbach &
    Miller 2008), with Student's factor for as many clusters as there are seeds. One seed: nothing varies."""
    residuals, means = within(log_y, group)
    keys, index = np.unique(seeds, return_inverse=True)
    numbers = np.random.default_rng(seed).standard_normal((count, len(keys)))
    return np.asarray(means + student_factor(len(keys), 1) * numbers[:, index] * residuals)


def student_factor(observations: int, points: int) -> float:
    """Student's quantile over the normal one, for as many degrees of freedom as the pooled seed spread has."""
    tail = 0.5 + LEVEL / 2
    freedom = observations - points
    return float(stats.t.ppf(tail, freedom) / stats.norm.ppf(tail)) if freedom > 0 else 1.0


def within(log_y: Array, group: np.ndarray, *, scaled: bool = True) -> tuple[Array, Array]:
    """Residuals about each point's mean (scaled by sqrt(n/(n-1))) and those means, both [N]."""
    _, index, sizes = np.unique(group, return_inverse=True, return_counts=True)
    means = (np.bincount(index, log_y) / sizes)[index]
    factor = np.sqrt(sizes / np.maximum(sizes - 1, 1)) if scaled else np.ones(len(sizes))
    return (log_y - means) * factor[index], means
