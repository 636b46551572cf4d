"""Statistics that figures, fits and the report share: intervals, tests, frontiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, stats

LEVEL = 0.95
"""Level of every interval."""
POWER = 0.8
"""Probability with which a comparison would have shown a difference that is called detectable."""


@dataclass(frozen=True)
class Mean:
    """A mean with its two-sided interval; no interval (None) from a single value."""

    value: float
    bounds: tuple[float, float] | None
    n: int

    @property
    def sign(self) -> int:
        """+1 or -1 when the interval excludes zero; 0 otherwise, and without an interval."""
        low, high = self.bounds or (0.0, 0.0)
        return int(low > 0) - int(high < 0)

    @property
    def p(self) -> float | None:
        """Two-sided p value of Student's test against 0, from the 95 % interval; None without an interval."""
        if self.bounds is None or self.n < 2:
            return None
        half = self.bounds[1] - self.value
        return float(2 * stats.t.sf(abs(self.value) / half * student(self.n - 1), self.n - 1))

    def clipped(self, low: float, high: float) -> Mean:
        """The estimate with its interval cut to [low, high], the range of the quantity."""
        bounds = self.bounds and (max(low, self.bounds[0]), min(high, self.bounds[1]))
        return Mean(self.value, bounds, self.n)


def student(freedom: int) -> float:
    """Student's quantile of the two-sided interval, for so many degrees of freedom."""
    return float(stats.t.ppf(0.5 + LEVEL / 2, freedom))


def mean(values: np.ndarray | pd.Series | list[float]) -> Mean:
    """Mean and Student interval over seeds (n - 1 degrees of freedom); NaN values are left out. Equal values, as shares
    of a small test set are, say nothing of their spread: no interval."""
    data = np.asarray(values, float)
    data = data[np.isfinite(data)]
    n = len(data)
    centre = float(data.mean()) if n else float("nan")
    if n < 2 or np.ptp(data) <= 1e-12 * max(1.0, abs(centre)):
        return Mean(centre, None, n)
    half = float(student(n - 1) * data.std(ddof=1) / np.sqrt(n))
    return Mean(centre, (centre - half, centre + half), n)


def share(values: np.ndarray | pd.Series | list[float], puzzles: float) -> Mean:
    """Mean share of `puzzles` over seeds, which share one test set: half the widths of Student's interval over seeds
    and of Wilson's over puzzles add in squares (Zou & Donner 2008, MOVER). Of one seed the puzzles' error alone."""
    seeds = mean(values)
    if not seeds.n or not puzzles > 0:
        return seeds
    low, high = wilson(seeds.value * puzzles, puzzles)
    own = seeds.bounds[1] - seeds.value if seeds.bounds else 0.0
    below, above = (float(np.hypot(own, end - seeds.value)) for end in (low, high))
    return Mean(seeds.value, (seeds.value - below, seeds.value + above), seeds.n).clipped(0.0, 1.0)


def percentiles(values: np.ndarray) -> np.ndarray:
    """Percentile interval over the first axis: [2, ...]; NaN if there is none."""
    if not len(values):
        return np.full((2, *values.shape[1:]), np.nan)
    tail = 50 * (1 - LEVEL)
    return np.asarray(np.percentile(values, [tail, 100 - tail], axis=0))


def seed_spread(logs: np.ndarray, group: np.ndarray) -> float | None:
    """Pooled standard deviation within groups, 0 where equal values differ by rounding; None: no group has two."""
    keys, index = np.unique(group, return_inverse=True)
    freedom = len(logs) - len(keys)
    if freedom <= 0:
        return None
    means = np.bincount(index, logs) / np.bincount(index)
    spread = float(np.sqrt(((logs - means[index]) ** 2).sum() / freedom))
    return spread if spread > 1e-12 else 0.0


def pooled_log_intervals(values: np.ndarray, group: np.ndarray, most: float = np.inf) -> dict[Any, Mean]:
    """Geometric mean of each group with an interval from the seed spread pooled over all groups.

    Three seeds alone give a Student factor of 4.3; pooling the logarithms' variance over the points, which the fits
    assume too, steadies the bars. No interval if no group has two values.

    Args:
        most: the largest possible value (an error: 1), where the interval ends.
    """
    logs = np.log(values)
    keys = np.unique(group)
    spread = seed_spread(logs, group)
    result = {}
    for key in keys:
        own = logs[group == key]
        centre = float(np.exp(own.mean()))
        bounds = None
        if spread is not None:
            factor = student(len(logs) - len(keys)) * spread
            ratio = float(np.exp(factor / np.sqrt(len(own))))
            bounds = (centre / ratio, min(centre * ratio, most))
        result[key] = Mean(centre, bounds, len(own))
    return result


def wilson(correct: float, total: float) -> tuple[float, float]:
    """Wilson's interval of a share (binomial error of a finite test set); `correct` need not be an integer."""
    z = float(stats.norm.ppf(0.5 + LEVEL / 2))
    share = correct / total
    centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z / (1 + z**2 / total) * np.sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def paired(left: pd.Series, right: pd.Series) -> Mean:
    """Mean of right - left over the seeds that both have. Index of both: seed."""
    before, after = shared(left, right)
    return mean(after - before)


def interaction(a: pd.Series, b: pd.Series, c: pd.Series, d: pd.Series) -> Mean:
    """(d - c) - (b - a) over shared seeds: does the effect b - a change elsewhere? Index: seed."""
    before, after, other_before, other_after = shared(a, b, c, d)
    return mean((other_after - other_before) - (after - before))


def shared(*series: pd.Series) -> np.ndarray:
    """Values [series, seed] of the seeds that all have."""
    means = [part.groupby(level=0).mean() for part in series]
    return pd.concat(means, axis=1, join="inner").dropna().to_numpy(float).T


def holm(values: Sequence[float | None]) -> list[float | None]:
    """p values adjusted for their number by Holm's step-down method (Holm 1979); None stays None."""
    known = sorted((value, index) for index, value in enumerate(values) if value is not None)
    adjusted: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (value, index) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * value))
        adjusted[index] = highest
    return adjusted


def detectable(differences: Sequence[Mean], tests: int = 0) -> float | None:
    """The smallest true difference that the typical comparison would have shown with probability POWER.

    By the noncentral t distribution of n - 1 degrees. The standard deviation of paired differences is pooled over the
    comparisons, and alpha is divided by their number, or by `tests` if others are tested with them (Bonferroni,
    stricter than Holm's method). None: no comparison has two unlike pairs.
    """
    known = [(item.n, item.bounds[1] - item.value) for item in differences if item.n > 1 and item.bounds]
    if not known:
        return None
    n = min(n for n, _ in known)
    errors = [half / student(n - 1) for n, half in known]
    limit = stats.t.ppf(1 - (1 - LEVEL) / max(tests, len(known)) / 2, n - 1)
    size = optimize.brentq(lambda at: stats.nct.sf(limit, n - 1, at) - POWER, 0.0, 10 * limit + 10)
    return float(size * np.sqrt(np.mean(np.square(errors))))


EQUAL_COST = 0.05
"""Relative difference of costs that count as equal: runs of one budget end at whole steps."""


def frontier(cost: np.ndarray, value: np.ndarray, *, tolerance: float = EQUAL_COST) -> np.ndarray:
    """Indices of the points on the Pareto frontier (higher values are better), by rising cost.

    A point is dominated if another costs no more and is at least as good, and is strictly better in one of the two.
    Costs that differ by less than the relative `tolerance` count as equal: of such a group only the best value stays.
    """
    best, kept, first = -np.inf, list[int](), 0.0
    for index in np.lexsort((-value, cost)):
        if not np.isfinite(value[index]) or value[index] <= best:
            continue
        best = value[index]
        if kept and tolerance > 0 and cost[index] <= first * (1 + tolerance):
            kept.pop()
        else:
            first = cost[index]
        kept.append(int(index))
    return np.array(kept, int)


def by_number(rows: pd.DataFrame, column: str) -> list[tuple[float, pd.DataFrame]]:
    """(number, its rows) for each number in a column, in rising order."""
    return [(float(value), rows[rows[column] == value]) for value in np.unique(rows[column].dropna())]
