"""What a recurrence is worth, by several laws at once.

A network of N parameters whose blocks are applied r = T (n + 1) times counts as N r^phi parameters (arXiv 2604.21106):
with phi = 0 recurrence buys nothing but its compute, with phi = 1 as much as blocks of their own. phi depends on the
law that it stands in, so it is fitted in each, and is known only where they agree.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trm.analysis.fits.bootstrap import by_seed
from trm.analysis.fits.forms import FORMS, POWER, SCALE, Array, Form, normalise
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
"""Log errors [B, Q] at other points."""


def _linear(design: Callable[[Points], Array], points: Points) -> tuple[Array, Predict]:
    made = design(points)
    found = np.linalg.lstsq(made, points.log_y.T, rcond=None)[0]
    cost = 0.5 * ((made @ found - points.log_y.T) ** 2).sum(axis=0)
    return cost, lambda other: np.asarray((design(other) @ found).T)


def _product(points: Points, phi: float) -> tuple[Array, Predict]:
    def design(at: Points) -> Array:
        return np.stack([np.ones_like(at.rows), np.log(at.size(phi)), np.log(at.rows)], axis=1)

    return _linear(design, points)


def _quadratic(points: Points, phi: float, apart: bool = False) -> tuple[Array, Predict]:
    """`apart`: with an offset of its own for each number of recurrences."""
    centre = np.array([np.log(points.size(phi)).mean(), np.log(points.rows).mean()])

    def design(at: Points) -> Array:
        m, d = np.log(at.size(phi)) - centre[0], np.log(at.rows) - centre[1]
        own = [(at.recurrences == r).astype(float) for r in np.unique(points.recurrences)]
        return np.stack([*(own if apart else [np.ones_like(m)]), m, d, m * m, d * d, m * d], axis=1)

    return _linear(design, points)


def _coupled(phi: Array, u: Array) -> tuple[Array, Array]:
    """Kaplan et al. 2020 (arXiv 2001.08361, eq. 1.5): log of (A M^-s + B / D)^b; phi: log A, log s, log B, log b."""
    s, b = np.exp(phi[:, 1:2]), np.exp(phi[:, 3:4])
    first, second = phi[:, :1] - s * np.log(u[..., 0, :]), phi[:, 2:3] - np.log(u[..., 1, :])
    total = np.logaddexp(first, second)
    share = np.exp(first - total)
    slopes = [b * share, b * share * (first - phi[:, :1]), b * (1 - share), b * total]
    return b * total, np.stack(slopes, axis=-1)


def _coupled_starts(u: Array, y: Array) -> Array:
    found = [
        (np.log(y.mean()) / b, np.log(s), np.log(y.mean()) / b, np.log(b))
        for b in (0.2, 0.5, 1, 2)
        for s in (0.3, 1, 3)
    ]
    return np.array(found)


COUPLED = Form(
    ("A", "s", "B", "b"),
    (SCALE, POWER, SCALE, POWER),
    _coupled,
    _coupled_starts,
    lambda phi, g: np.exp(phi),
    variables=2,
)


def _fitted(form: Form) -> Callable[[Points, float], tuple[Array, Predict]]:
    def fit(points: Points, phi: float) -> tuple[Array, Predict]:
        u, scale = normalise(form, np.stack([points.size(phi), points.rows]))
        first = solve(form, u, points.log_y[:1], DELTA, form.starts(u, np.exp(points.log_y[0])), refine=8)
        cost, found = first.cost, first.phi
        if len(points.log_y) > 1:
            rest = solve(form, u, points.log_y[1:], DELTA, first.phi, refine=1)
            cost, found = np.concatenate([cost, rest.cost]), np.concatenate([found, rest.phi])
        return cost, lambda other: form.log_value(
            found, np.stack([other.size(phi), other.rows]) / scale[:, None]
        )

    return fit


LAWS: dict[str, tuple[int, Callable[[Points, float], tuple[Array, Predict]]]] = {
    "E + A M⁻ᵃ + B D⁻ᵇ": (5, _fitted(FORMS["joint"])),
    "(A M⁻ˢ + B / D)ᵇ": (4, _fitted(COUPLED)),
    "A M⁻ᵃ D⁻ᵇ": (3, _product),
    "a quadratic in log M and log D": (6, _quadratic),
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
    found = {}
    early = points.budget < points.budget.max()
    known, last = points.at(early), points.at(~early)
    known = known._replace(log_y=known.log_y[:1])
    count, kinds = len(points.rows), len(np.unique(points.recurrences))
    own = points._replace(log_y=points.log_y[:1])
    for name, (parameters, fit) in LAWS.items():
        costs = np.array([fit(points, phi)[0] for phi in PHI])
        best = _least(costs)
        profile = _criterion(costs[:, 0], count, parameters)
        least = float(_criterion(fit(own, float(best[0]))[0][0], count, parameters))
        rivals = {
            f"{phi:g}": float(_criterion(fit(own, phi)[0][0], count, parameters)) - least for phi in RIVALS
        }
        if fit is _quadratic:
            apart = _quadratic(own, 0.0, apart=True)[0][0]
            rivals["an offset for each r"] = float(_criterion(apart, count, parameters + kinds - 2)) - least
        missed = {}
        if early.any():
            low = float(_least(np.array([fit(known, phi)[0] for phi in PHI]))[0])
            missed = {
                label: float(np.sqrt(((fit(known, phi)[1](last)[0] - last.log_y[0]) ** 2).mean()))
                for label, phi in (("fitted", low), *((f"{rival:g}", rival) for rival in RIVALS))
            }
        low, high = percentiles(best[1:], 0.95)
        interval = (float(low), float(high))
        found[name] = Found(float(best[0]), interval, profile - profile.min(), least, rivals, missed)
    return found


def drawn(log_y: Array, group: np.ndarray, seeds: np.ndarray) -> Array:
    """Mean log errors by grid point [1 + B, P]: as measured, then with whole seeds drawn anew."""
    every = np.concatenate([log_y[None], by_seed(log_y, group, seeds, DRAWS, 0)])
    return np.stack([every[:, group == key].mean(axis=1) for key in np.unique(group)], axis=1)
