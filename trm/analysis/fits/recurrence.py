"""What a recurrence is worth, by several laws at once.

A network of N parameters whose blocks are applied r = T (n + 1) times counts as N r^phi parameters (arXiv 2604.21106):
with phi = 0 recurrence buys nothing but its compute, with phi = 1 as much as blocks of their own. phi depends on the
law that it stands in, so it is fitted in each, and is known only where they agree.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trm.analysis.fits.bootstrap import by_seed
from trm.analysis.fits.forms import FORMS, Array, normalise
from trm.analysis.fits.solve import solve
from trm.analysis.stats import percentiles

PHI = np.linspace(-0.5, 1.5, 21)
RIVALS = (0.0, 0.46, 1.0)
"""Worth nothing; of language models (arXiv 2604.21106); worth as much as blocks of their own."""
DRAWS = 100
DELTA = 0.3
"""Huber threshold in log units."""


class Points(NamedTuple):
    """Grid points: parameters, recurrences, training rows and training FLOPs [P], and log errors [B, P]."""

    parameters: Array
    recurrences: Array
    rows: Array
    flops: Array
    log_y: Array

    def at(self, keep: np.ndarray) -> "Points":
        return Points(*(values[..., keep] for values in self))

    def size(self, phi: float) -> Array:
        return np.asarray(self.parameters * self.recurrences**phi)

    @property
    def budget(self) -> np.ndarray:
        """Number of each point's training budget, from 0."""
        return np.unique(np.round(np.log(self.flops), 1), return_inverse=True)[1]


Predict = Callable[[Points], Array]
"""Log errors at other points: those as measured come first."""
Fit = Callable[[Points, float], tuple[Array, Predict]]
"""Points and phi -> cost of each of their data sets [B], and the law."""
QUADRATIC = "a quadratic in log M and log D"


def _polynomial(terms: int, apart: bool = False) -> Fit:
    """Log error by the first `terms` of log M, log D, their squares and product; `apart`: with an offset for each r."""

    def fit(points: Points, phi: float) -> tuple[Array, Predict]:
        def design(at: Points) -> Array:
            m, d = np.log(at.size(phi) / points.size(phi).mean()), np.log(at.rows / points.rows.mean())
            offsets = [at.recurrences == r for r in np.unique(points.recurrences)] if apart else [m == m]
            return np.stack([*offsets, *(m, d, m * m, d * d, m * d)[:terms]], axis=1).astype(float)

        found = np.linalg.lstsq(design(points), points.log_y.T, rcond=None)[0]
        cost = 0.5 * ((design(points) @ found - points.log_y.T) ** 2).sum(axis=0)
        return cost, lambda other: np.asarray((design(other) @ found).T)

    return fit


def _joint(points: Points, phi: float) -> tuple[Array, Predict]:
    form = FORMS["joint"]
    u, scale = normalise(form, np.stack([points.size(phi), points.rows]))
    first = solve(form, u, points.log_y[:1], DELTA, form.starts(u, np.exp(points.log_y[0])), refine=8)
    found = solve(form, u, points.log_y, DELTA, first.phi, refine=1)
    cost = np.append(first.cost, found.cost[1:])
    return cost, lambda at: form.log_value(first.phi, np.stack([at.size(phi), at.rows]) / scale[:, None])


LAWS: dict[str, tuple[int, Fit]] = {
    "E + A M⁻ᵃ + B D⁻ᵇ": (5, _joint),
    "A M⁻ᵃ D⁻ᵇ": (3, _polynomial(2)),
    QUADRATIC: (6, _polynomial(5)),
}
"""Law of M = N r^phi and the training rows D -> its parameters besides phi, and its fit."""


class Found(NamedTuple):
    """phi in one law."""

    phi: float
    interval: tuple[float, float]
    profile: Array
    """AICc over `PHI` less its least."""
    aicc: float
    rivals: dict[str, float]
    """AICc of a rival phi less that of the fitted one; of the quadratic also that of an offset for each r instead."""
    held_out: dict[str, float]
    """Root mean square log error at the largest budget, predicted from the others, with the fitted phi and with each
    rival; empty with one budget."""


def _least(costs: Array) -> Array:
    """Place of the least of each column of [PHI, B], by the parabola through the three lowest points."""
    at = np.clip(costs.argmin(axis=0), 1, len(PHI) - 2)
    every = np.arange(costs.shape[1])
    left, low, right = (costs[at + step, every] for step in (-1, 0, 1))
    bend = np.maximum(left - 2 * low + right, 1e-12)
    return np.asarray(PHI[at] + (PHI[1] - PHI[0]) * np.clip((left - right) / (2 * bend), -1.0, 1.0))


def _criterion(cost: Array | float, count: int, parameters: int) -> Array:
    k = parameters + 2  # phi and the variance
    return np.asarray(
        count * np.log(2 * np.asarray(cost) / count) + 2 * k + 2 * k * (k + 1) / (count - k - 1)
    )


def worth(points: Points) -> dict[str, Found]:
    """phi in every law. points.log_y: the measured errors first, then draws."""
    found, count, last = {}, len(points.rows), points.budget == points.budget.max()
    own = points._replace(log_y=points.log_y[:1])
    for name, (parameters, fit) in LAWS.items():
        costs = np.array([fit(points, phi)[0] for phi in PHI])
        best = _least(costs)
        profile = _criterion(costs[:, 0], count, parameters)
        least = float(_criterion(fit(own, float(best[0]))[0][0], count, parameters))
        rivals = {
            f"{phi:g}": float(_criterion(fit(own, phi)[0][0], count, parameters)) - least for phi in RIVALS
        }
        if name == QUADRATIC:
            apart = _polynomial(5, apart=True)(own, 0.0)[0][0]
            kinds = len(np.unique(points.recurrences))
            rivals["an offset for each r"] = float(_criterion(apart, count, 4 + kinds)) - least
        missed = {}
        if not last.all():
            known, rest = own.at(~last), own.at(last)
            tried = {"fitted": float(_least(np.array([fit(known, phi)[0] for phi in PHI]))[0])}
            for label, phi in (tried | {f"{phi:g}": phi for phi in RIVALS}).items():
                wrong = fit(known, phi)[1](rest)[0] - rest.log_y[0]
                missed[label] = float(np.sqrt((wrong**2).mean()))
        low, high = percentiles(best[1:], 0.95)
        interval = (float(low), float(high))
        found[name] = Found(float(best[0]), interval, profile - profile.min(), least, rivals, missed)
    return found


def drawn(log_y: Array, group: np.ndarray, seeds: np.ndarray) -> Array:
    """Mean log errors by grid point [1 + B, P]: as measured, then with whole seeds drawn anew."""
    every = np.concatenate([log_y[None], by_seed(log_y, group, seeds, DRAWS, 0)])
    return np.stack([every[:, group == key].mean(axis=1) for key in np.unique(group)], axis=1)
