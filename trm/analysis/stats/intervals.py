"""Intervals of means, shares and paired differences; correction for many comparisons; power."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.95


@dataclass(frozen=True)
class Mean:
    """A mean with its two-sided interval; no interval (None) from a single value."""

    value: float
    low: float | None
    high: float | None
    n: int

    @property
    def bounds(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def sign(self) -> int:
        """+1 or -1 when the interval excludes zero; 0 otherwise, and without an interval."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    @property
    def p(self) -> float | None:
        """Two-sided p value of Student's test against 0, from the 95 % interval; None without an interval."""
        if self.high is None or self.n < 2:
            return None
        half = self.high - self.value
        if half <= 0:
            return 0.0 if self.value else 1.0
        return float(2 * stats.t.sf(abs(self.value) / half * stats.t.ppf(0.975, self.n - 1), self.n - 1))

    @property
    def strength(self) -> float:
        """Size over half the width of the interval: above 1 where it excludes zero; 0 without an interval."""
        return abs(self.value) / max(1e-9, abs(self.value - self.low)) if self.low is not None else 0.0

    def clipped(self, low: float, high: float) -> Mean:
        """The same with its interval cut to [low, high], the range of the quantity."""
        if self.low is None or self.high is None:
            return self
        return Mean(self.value, max(low, self.low), min(high, self.high), self.n)


def mean(values: np.ndarray | pd.Series | list[float], level: float = LEVEL) -> Mean:
    """Mean and Student interval over seeds (n - 1 degrees of freedom); NaN values are left out."""
    data = np.asarray(values, float)
    data = data[np.isfinite(data)]
    n = len(data)
    if n == 0:
        return Mean(float("nan"), None, None, 0)
    centre = float(data.mean())
    if n == 1:
        return Mean(centre, None, None, 1)
    half = float(stats.t.ppf(0.5 + level / 2, n - 1) * data.std(ddof=1) / np.sqrt(n))
    return Mean(centre, centre - half, centre + half, n)


def pooled_spread(values: np.ndarray, group: np.ndarray) -> tuple[float, int] | None:
    """Standard deviation of the logarithms within groups, and its degrees of freedom; None: no group has two values."""
    logs = np.log(values)
    keys = pd.unique(group)
    freedom = len(logs) - len(keys)
    if freedom <= 0:
        return None
    squares = sum(((logs[group == key] - logs[group == key].mean()) ** 2).sum() for key in keys)
    return float(np.sqrt(squares / freedom)), freedom


def pooled_log_intervals(
    values: np.ndarray,
    group: np.ndarray,
    level: float = LEVEL,
    spread: tuple[float, int] | None = None,
    most: float = np.inf,
) -> dict[Any, Mean]:
    """Geometric mean of each group with an interval from the seed spread pooled over all groups.

    Three seeds alone give a Student factor of 4.3; pooling the logarithms' variance over the points, which
    the fits assume too, steadies the bars. If no group has two values, there is no interval.

    Args:
        spread: pooled over more than these values (default: over them).
        most: the largest possible value (an error: 1), where the interval ends.
    """
    logs = np.log(values)
    keys = pd.unique(group)
    members = {key: logs[group == key] for key in keys}
    spread = spread or pooled_spread(values, group)
    if spread is None:
        return {key: Mean(float(np.exp(own.mean())), None, None, len(own)) for key, own in members.items()}
    factor = stats.t.ppf(0.5 + level / 2, spread[1]) * spread[0]
    result = {}
    for key, own in members.items():
        half = factor / np.sqrt(len(own))
        centre, low, high = (float(np.exp(own.mean() + shift)) for shift in (0.0, -half, half))
        result[key] = Mean(centre, low, min(high, most), len(own))
    return result


def wilson(correct: float, total: float, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's interval of a share (binomial error of a finite test set)."""
    if total <= 0:
        return float("nan"), float("nan")
    z = float(stats.norm.ppf(0.5 + level / 2))
    share = correct / total
    centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z / (1 + z**2 / total) * np.sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def paired(left: pd.Series, right: pd.Series, level: float = LEVEL) -> Mean:
    """Mean of right - left over the seeds that both have. Index of both: seed."""
    left, right = left.groupby(level=0).mean(), right.groupby(level=0).mean()
    shared = left.index.intersection(right.index)
    return mean(right.loc[shared].to_numpy(float) - left.loc[shared].to_numpy(float), level)


def interaction(a: pd.Series, b: pd.Series, c: pd.Series, d: pd.Series) -> Mean:
    """(d - c) - (b - a) over shared seeds: does the effect b - a change elsewhere? Index: seed."""
    parts = [series.groupby(level=0).mean() for series in (a, b, c, d)]
    shared = parts[0].index
    for part in parts[1:]:
        shared = shared.intersection(part.index)
    before, after, other_before, other_after = (part.loc[shared].to_numpy(float) for part in parts)
    return mean((other_after - other_before) - (after - before))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """p values adjusted for their number by Holm's step-down method (Holm 1979); None stays None."""
    known = sorted((value, index) for index, value in enumerate(values) if value is not None)
    adjusted: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (value, index) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * value))
        adjusted[index] = highest
    return adjusted


def detectable(differences: Sequence[Mean], power: float = 0.8, level: float = LEVEL) -> float | None:
    """The smallest true difference that the typical comparison would have shown with probability `power`.

    (t_alpha + t_power) s / sqrt(n): s is the standard deviation of paired differences pooled over the comparisons, and
    alpha is divided by their number (Bonferroni, stricter than Holm's method). None: no comparison has two pairs.
    """
    known = [item for item in differences if item.n > 1 and item.high is not None]
    if not known:
        return None
    n = min(item.n for item in known)
    half = [float(item.high or 0.0) - item.value for item in known]
    errors = [width / stats.t.ppf(0.975, item.n - 1) for width, item in zip(half, known)]
    spread = float(np.sqrt(np.mean(np.square(errors))))
    alpha = (1 - level) / len(known)
    return float((stats.t.ppf(1 - alpha / 2, n - 1) + stats.t.ppf(power, n - 1)) * spread)
