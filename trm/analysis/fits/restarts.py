"""Repeated attempts at the same puzzles: how likely one is to solve a puzzle, how alike attempts are, and what more of
them would solve.

Each puzzle has its own chance, from a beta distribution of mean p; the number of K attempts that solve it is then
beta-binomial (Skellam 1948), and two attempts at one puzzle are correlated by ICC = 1 / (a + b + 1).
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import betaln, comb, expit

from trm.analysis.fits.forms import Array

LIMIT = 12.0
"""Largest logit of a rate or a correlation: counts without a mix of right and wrong end there."""


class Attempts(NamedTuple):
    """Chance of one attempt, and the correlation between two at one puzzle."""

    rate: float
    correlation: float

    def solved(self, attempts: Array) -> Array:
        """Share of puzzles that at least one of so many attempts solves."""
        a, b = _shape(self.rate, self.correlation)
        return np.asarray(-np.expm1(betaln(a, b + attempts) - betaln(a, b)))


def _shape(rate: float, correlation: float) -> tuple[float, float]:
    spread = 1 / correlation - 1
    return rate * spread, (1 - rate) * spread


def fit_attempts(counts: Array) -> Attempts:
    """Most likely rate and correlation. counts [K + 1]: puzzles that exactly 0, 1, ... K attempts solve."""
    counts = np.asarray(counts, float)
    most = len(counts) - 1
    hits = np.arange(most + 1)

    def loss(phi: Array) -> float:
        a, b = _shape(*expit(np.clip(phi, -LIMIT, LIMIT)))
        return -float(counts @ (betaln(a + hits, b + most - hits) - betaln(a, b)))

    mean = np.clip(counts @ hits / max(1.0, counts.sum() * most), 1e-4, 1 - 1e-4)
    starts = [np.array([np.log(mean / (1 - mean)), start]) for start in (-2.0, 0.5)]
    best = min((minimize(loss, start, method="Nelder-Mead") for start in starts), key=lambda found: found.fun)
    return Attempts(*(float(value) for value in expit(np.clip(best.x, -LIMIT, LIMIT))))


def drawn(counts: Array, number: int, seed: int = 0) -> list[Attempts]:
    """The fit to `number` data sets whose puzzles are drawn anew."""
    counts = np.asarray(counts, float)
    samples = np.random.default_rng(seed).multinomial(int(counts.sum()), counts / counts.sum(), number)
    return [fit_attempts(sample) for sample in samples]


def any_of(counts: Array) -> Array:
    """Share of puzzles that at least one of 1, 2, ... K attempts solves, [K]: the mean over their orders."""
    counts = np.asarray(counts, float)
    most = len(counts) - 1
    missed = most - np.arange(most + 1)
    shares = [1 - counts @ (comb(missed, k) / comb(most, k)) / counts.sum() for k in range(1, most + 1)]
    return np.array(shares)
