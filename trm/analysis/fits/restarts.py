"""Repeated attempts at the same puzzles: how likely one is to solve a puzzle, how alike attempts are, and what more of
them would solve.

Each puzzle has its own chance q, from a beta distribution of mean p; the number of attempts that solve it is then
beta-binomial (Skellam 1948), and two attempts at one puzzle are correlated by ICC = 1 / (a + b + 1). The first attempt
differs from the others (no noise, the puzzle as it is given), so it has the chance q^g: p and ICC are those of the
others alone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import betaln, comb, expit

from trm.analysis.fits.bootstrap import student_factor
from trm.analysis.fits.forms import Array
from trm.analysis.stats import percentiles

LIMIT = 12.0
"""Largest logit of a rate or a correlation: counts without a mix of right and wrong end there."""
HEAD = 4.0
"""Largest logarithm of g, and of 1 / g."""

CLOSE = {"xatol": 1e-3, "fatol": 1e-3}
"""Where the search ends, in logits and log likelihood."""


class Attempts(NamedTuple):
    """Chance of one attempt after the first, the correlation between two at one puzzle, and the first's exponent g."""

    rate: float
    correlation: float
    head: float = 1.0

    def solved(self, attempts: Array) -> Array:
        """Share of puzzles that at least one of so many attempts solves."""
        a, b = _shape(self.rate, self.correlation)
        others = b + attempts - 1
        return np.asarray(1 - np.exp(betaln(a, others) - betaln(a, b)) + _ratio(a + self.head, others, a, b))


def _shape(rate: float, correlation: float) -> tuple[float, float]:
    spread = 1 / correlation - 1
    return rate * spread, (1 - rate) * spread


def _ratio(up: Any, down: Any, a: float, b: float) -> Array:
    return np.asarray(np.exp(betaln(up, down) - betaln(a, b)))


def _chances(phi: Array, most: int) -> Array:
    """Chance that exactly 0, 1, ... `most` attempts solve a puzzle."""
    (a, b), head = _shape(*expit(np.clip(phi[:2], -LIMIT, LIMIT))), np.exp(np.clip(phi[2], -HEAD, HEAD))
    hits = np.arange(most + 1)
    first, rest = np.zeros(most + 1), np.zeros(most + 1)
    k = hits[1:]
    first[1:] = comb(most - 1, k - 1) * _ratio(a + head + k - 1, b + most - k, a, b)
    k = hits[:-1]
    missed = _ratio(a + k, b + most - 1 - k, a, b) - _ratio(a + head + k, b + most - 1 - k, a, b)
    rest[:-1] = comb(most - 1, k) * np.maximum(missed, 0.0)
    return np.maximum(first + rest, 1e-300)


def fit_attempts(counts: Any, first: Any = None, start: Attempts | None = None) -> Attempts:
    """The most likely law.

    Args:
        counts: puzzles that exactly 0, 1, ... K attempts solve [K + 1].
        first: the same of the first attempt alone [2]; None: all attempts are alike.
        start: where to begin; None: at two places.
    """
    counts = np.asarray(counts, float)
    most = len(counts) - 1

    def loss(phi: Array) -> float:
        phi = phi if len(phi) == 3 else np.append(phi, 0.0)
        value = counts @ np.log(_chances(phi, most))
        return -float(value + (0.0 if first is None else np.asarray(first) @ np.log(_chances(phi, 1))))

    free = 2 + (first is not None)
    mean = np.clip(counts @ np.arange(most + 1) / max(1.0, counts.sum() * most), 1e-4, 1 - 1e-4)
    starts = [np.array([np.log(mean / (1 - mean)), at, 0.0])[:free] for at in (-2.0, 0.5)]
    if start:
        rate, correlation, head = np.clip(start, 1e-5, [1 - 1e-5, 1 - 1e-5, np.inf])
        logits = [np.log(rate / (1 - rate)), np.log(correlation / (1 - correlation)), np.log(head)]
        starts = [np.array(logits)[:free]]
    best = min(
        (minimize(loss, at, method="Nelder-Mead", options=CLOSE) for at in starts), key=lambda item: item.fun
    )
    rate, correlation = (float(value) for value in expit(np.clip(best.x[:2], -LIMIT, LIMIT)))
    return Attempts(rate, correlation, float(np.exp(np.clip(best.x[2], -HEAD, HEAD))) if free == 3 else 1.0)


def drawn(counts: Sequence[Any], firsts: Sequence[Any], number: int, seed: int = 0) -> list[Attempts]:
    """The fit to `number` data sets of whole seeds drawn anew, and of their puzzles. counts, firsts: of each seed, as
    for `fit_attempts`."""
    rng, seeds = np.random.default_rng(seed), len(counts)
    start, found = fit_attempts(np.sum(counts, axis=0), np.sum(firsts, axis=0)), []
    for _ in range(number):
        picked = rng.integers(0, seeds, seeds)
        sets = [np.sum([part[i] for i in picked], axis=0) for part in (counts, firsts)]
        again, head = (rng.multinomial(int(part.sum()), part / part.sum()) for part in sets)
        found.append(fit_attempts(again, head, start))
    return found


def around(value: float, draws: Sequence[float], seeds: int) -> tuple[float, float]:
    """95 % interval of a share from draws of whole seeds, widened to the spread and Student's factor of few seeds."""
    factor = student_factor(seeds, 1) * np.sqrt(seeds / max(1, seeds - 1))
    low, high = percentiles(np.asarray(draws))
    low, high = value - factor * max(0.0, value - low), value + factor * max(0.0, high - value)
    return max(0.0, float(low)), min(1.0, float(high))


def any_of(counts: Array) -> Array:
    """Share of puzzles that at least one of 1, 2, ... K attempts solves, [K]: the mean over their orders."""
    counts = np.asarray(counts, float)
    most = len(counts) - 1
    missed = most - np.arange(most + 1)
    shares = [1 - counts @ (comb(missed, k) / comb(most, k)) / counts.sum() for k in range(1, most + 1)]
    return np.array(shares)


def same_share(counts: Array, attempts: int) -> float:
    """The rival, with nothing fitted: every doubling solves the same share of the rest as from K // 2 to K attempts."""
    solved, most = any_of(counts), len(counts) - 1
    half = most // 2
    left = (1 - solved[-1]) / max(1 - solved[half - 1], 1e-12)
    return float(1 - (1 - solved[-1]) * left ** (np.log(attempts / most) / np.log(most / half)))
