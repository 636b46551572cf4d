"""Which law do the points bear? AICc, the error on the held-out largest point, and a count of parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trm.analysis.fits.data import Data
from trm.analysis.fits.forms import FORMS, Array, Form, normalise
from trm.analysis.fits.solve import Solution, solve

MIN_DELTA = 0.02
"""Least Huber threshold in log units: identical seeds must not turn the fit into least absolute
deviations."""


@dataclass(frozen=True)
class Fitted:
    """One form fitted to one data set."""

    form: Form
    u: Array
    scale: Array
    solution: Solution
    delta: float

    @property
    def parameters(self) -> dict[str, float]:
        values = self.form.public(self.solution.phi, self.scale)[0]
        return dict(zip(self.form.parameters, (float(value) for value in values)))

    def predict(self, x: Array) -> Array:
        """The law at x [v, Q] -> [Q]."""
        return np.exp(self.form.log_value(self.solution.phi, x / self.scale[:, None])[0])


def fit_form(name: str, data: Data, delta: float) -> Fitted:
    """Fit one form by all starts of its grid."""
    form = FORMS[name]
    x = data.x[: form.variables]
    u, scale = normalise(form, x)
    solution = solve(form, u, data.log_y[None], delta, form.starts(u, data.y), refine=12)
    return Fitted(form, u, scale, solution, delta)


def aicc(fitted: Fitted, count: int) -> float | None:
    """Corrected Akaike criterion with the Huber cost as robust residual sum; None: too few observations.

    -2 log L = n log(2 cost / n) of a normal law with fitted variance; Hurvich & Tsai 1989 for the correction.
    """
    k = len(fitted.form.parameters) + 1
    if count - k - 1 <= 0:
        return None
    residual = max(2 * float(fitted.solution.cost[0]) / count, 1e-12)
    return count * np.log(residual) + 2 * k + 2 * k * (k + 1) / (count - k - 1)


def held_out(name: str, data: Data, delta: float) -> dict[str, float] | None:
    """Fit without the largest point and predict it; None if too few points remain.

    Returns:
        x of the point, observed and predicted value, and |log(predicted / observed)|.
    """
    form = FORMS[name]
    x, y = data.means()
    if x.shape[1] - 1 < max(2, len(form.parameters)):
        return None
    last = np.lexsort(x[::-1])[-1]
    largest = np.all(np.isclose(data.x, x[:, [last]]), axis=0)
    fitted = fit_form(name, data.without(largest), delta)
    predicted = float(fitted.predict(x[: form.variables, [last]])[0])
    return {
        "x": float(x[0, last]),
        "observed": float(y[last]),
        "predicted": predicted,
        "log_error": abs(float(np.log(predicted / y[last]))),
    }


def bears(form: Form, points: int) -> bool:
    """Whether `points` distinct points leave at least one degree of freedom to test the form's shape."""
    return points > len(form.parameters)


def choose(results: dict[str, dict[str, Any]]) -> tuple[str, str]:
    """The form to show, and why: lowest AICc among those the points bear.

    Args:
        results: per form its `aicc`, `held_out`, `borne` as in fit.json.
    """
    borne = [name for name, item in results.items() if item["borne"]]
    # Two points bear a constant only; if they clearly differ, saying "no change" would be wrong.
    pool = borne if set(borne) - {"constant"} else list(results)
    known = [name for name in pool if results[name]["aicc"] is not None]
    if not known:
        return pool[0], "too few runs for AICc"
    best = min(known, key=lambda name: results[name]["aicc"])
    outs = {name: results[name]["held_out"]["log_error"] for name in known if results[name]["held_out"]}
    if outs and best in outs:
        nearest = min(outs, key=outs.__getitem__)
        if nearest == best:
            return best, "lowest AICc, and nearest to the held-out largest point"
        return best, f"lowest AICc; {nearest} comes nearer to the held-out largest point"
    return best, "lowest AICc"


def delta_for(spread: float | None) -> float:
    """Huber threshold: 1.35 times the seed spread (95 % efficient for normal noise), never below
    MIN_DELTA."""
    return max(MIN_DELTA, 1.35 * (spread if spread is not None else 0.1))
