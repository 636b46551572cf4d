"""Which law do the points support, and which forms do they exclude? AICc, the held-out largest point, parameters.

A claim and an interval carry opposite burdens of proof. "Power law" is said only if every rival is worse even after
the price of its parameters (AICc), and still is with the error on the held-out largest point added. An interval
covers every form whose misfit alone does not rule it out (likelihood ratio), so that a floor which fits as well widens
it. benchmarks/claims.py measures how often a false form passes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from trm.analysis.fits.data import Data
from trm.analysis.fits.forms import EXPONENT, FORMS, TINY, Array, Form, normalise
from trm.analysis.fits.solve import Solution, solve
from trm.analysis.labels import FORM_NAMES
from trm.analysis.stats import percentiles, seed_spread
from trm.analysis.words import count, listed

LAWS = ("power_law", "power_law_floor")
SHOWN = ("constant", *LAWS)
"""Forms of one variable that may be shown."""
RIVALS = ("exponential", "sigmoid")
MARGIN = 0.5
"""AICc by which a rival must be worse: so 70 % and more of true laws are claimed, and at most 1 % of any other curve
(benchmarks/claims.py)."""
RATIO = 3.84
"""-2 log likelihood ratio beyond which a form is ruled out: 95 % of chi-squared with one degree."""
EQUAL = 0.025
"""One-sided level of the test that the last two points differ."""
MIN_DELTA = 0.02
"""Least Huber threshold in log units: identical seeds must not turn the fit into least absolute deviations."""


@dataclass(frozen=True)
class Fitted:
    """One form fitted to one data set."""

    form: Form
    u: Array
    scale: Array
    solution: Solution
    starts: Array

    @property
    def parameters(self) -> dict[str, float]:
        values = self.form.public(self.solution.phi, self.scale)[0]
        return dict(zip(self.form.parameters, (float(value) for value in values)))

    def predict(self, x: Array, phi: Array | None = None) -> Array:
        """The law at x [v, Q] -> [Q]; of refits phi [B, k] -> [B, Q]."""
        law = self.form.log_value(self.solution.phi if phi is None else phi, x / self.scale[:, None])
        return np.asarray(np.exp(law[0] if phi is None else law))


def fit_form(name: str, data: Data, delta: float) -> Fitted:
    """Fit one form by all starts of its grid."""
    form = FORMS[name]
    u, scale = normalise(form, data.x[: form.variables])
    starts = form.starts(u, data.y)
    return Fitted(form, u, scale, solve(form, u, data.log_y[None], delta, starts, refine=12), starts)


def aicc(fitted: Fitted) -> float | None:
    """Corrected Akaike criterion with the Huber cost as robust residual sum; None: too few observations.

    -2 log L = n log(2 cost / n) of a normal law with fitted variance; Hurvich & Tsai 1989 for the correction.
    """
    k, count = len(fitted.form.parameters) + 1, len(fitted.u[0])
    if count - k - 1 <= 0:
        return None
    residual = max(2 * float(fitted.solution.cost[0]) / count, 1e-12)
    return count * math.log(residual) + 2 * k + 2 * k * (k + 1) / (count - k - 1)


def held_out(name: str, data: Data, delta: float, samples: Array | None = None) -> dict[str, Any] | None:
    """Fit without the largest point and predict it; None if too few points remain.

    Args:
        samples: bootstrap data sets [B, N] of `data`; with them the prediction gets an interval that holds the seed
            spread of the held-out mean too.

    Returns:
        x of the point, observed and predicted value, |log(predicted / observed)|, and with samples the interval.
    """
    form = FORMS[name]
    x, *_ = data.means()
    end = x[:, [np.lexsort(x[::-1])[-1]]]
    largest, place = np.all(np.isclose(data.x, end), axis=0), end[: form.variables]  # every point there
    if len(np.unique(data.group[~largest])) < max(2, len(form.parameters)):
        return None
    observed = float(np.exp(data.log_y[largest].mean()))
    fitted = fit_form(name, data.without(largest), delta)
    predicted = float(fitted.predict(place)[0])
    found: dict[str, Any] = {
        "x": float(place[0, 0]),
        "observed": observed,
        "predicted": predicted,
        "log_error": abs(float(np.log(predicted / observed))),
    }
    if samples is not None:
        starts = np.concatenate([fitted.solution.phi, fitted.starts])
        refits = solve(form, fitted.u, samples[:, ~largest], delta, starts, refine=2)
        logs = form.log_value(refits.phi, place / fitted.scale[:, None])[:, 0]
        logs = logs + samples[:, largest].mean(axis=1) - data.log_y[largest].mean()
        most = 0.0 if data.tested.any() else np.inf  # an error is 1 at most
        found["interval"] = np.exp(np.minimum(percentiles(logs[refits.converged]), most)).tolist()
    return found


def enough(form: Form, points: int) -> bool:
    """Whether `points` distinct points are more than the form's parameters + 1, so that they test its shape."""
    return points > len(form.parameters) + 1


def choose(results: dict[str, dict[str, Any]]) -> tuple[str, str]:
    """The form to show, and why: the lowest AICc among those that the points test and that touch no bound; the rivals
    of a power law are only compared with. `results`: per form its `aicc`, `enough_points`, `at_bound`."""
    every, results = results, {name: item for name, item in results.items() if name not in RIVALS} or results
    enough_points = [
        name for name, item in results.items() if item["enough_points"] and not item.get("at_bound")
    ]
    # Two points test a constant only; if they clearly differ, "no change" would be wrong.
    pool = enough_points if set(enough_points) - {"constant"} else list(results)
    known = [name for name in pool if results[name]["aicc"] is not None]
    if not known:
        return pool[0], "too few runs for AICc"
    lowest = " of a constant and the power laws" * (len(results) < len(every))
    return min(known, key=lambda name: results[name]["aicc"]), f"lowest AICc{lowest}"


def doubts(
    chosen: str, results: dict[str, dict[str, Any]], points: int, spanned: Sequence[str] = ()
) -> list[str]:
    """Why the chosen form may not be called a law; empty: it may. Its intervals hold those of the forms `spanned`."""
    form = results[chosen]
    if chosen == "constant":
        return []
    found = []
    if not form["enough_points"]:
        found.append(f"{count(points, 'point')} cannot test a law with {len(form['parameters'])} parameters")
    powers = [form, *(results[name] for name in spanned if name in LAWS)]
    if any(power["at_bound"] or (power.get("bound_share") or 0) > 0.05 for power in powers):
        found.append("an exponent reaches the bound of the search")
    if (form.get("failed_share") or 0) > 0.05:
        found.append(f"{100 * form['failed_share']:.0f} % of the refits failed")
    bounds = form.get("intervals")
    if bounds is None:
        found.append("one seed a point, or equal ones, give no interval")
    for key in ("a", "b"):
        low, high = (bounds or {}).get(key, (1.0, 1.0))
        if low <= 0 <= high or 0 < low <= 1.01 * EXPONENT[0]:
            found.append("the interval of an exponent includes 0")
            break
    out, flat = form["held_out"], results.get("constant", {}).get("held_out")
    if out and flat and flat["log_error"] < out["log_error"]:
        found.append("a constant predicts the largest point better")
    if out and out.get("interval") and not out["interval"][0] <= out["observed"] <= out["interval"][1]:
        found.append("it fails to predict the largest point")
    return found


def delta_for(spread: float | None) -> float:
    """Huber threshold: 1.35 times the seed spread (95 % efficient for normal noise), never below MIN_DELTA."""
    return max(MIN_DELTA, 1.35 * (spread if spread is not None else 0.1))


def alike(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The forms that fit alike: AICc within MARGIN of the lowest, best first."""
    known = {name: item["aicc"] for name, item in results.items() if item["aicc"] is not None}
    lowest = min(known.values(), default=0.0)
    return sorted((name for name in known if known[name] < lowest + MARGIN), key=known.__getitem__)


def possible(results: Mapping[str, Mapping[str, Any]], observations: int) -> list[str]:
    """The forms of one variable that their misfit to the observations does not rule out."""
    loss = {
        name: observations * math.log(max(item["cost"], 1e-12))
        for name, item in results.items()
        if name in LAWS + RIVALS and item["converged"]
    }
    lowest = min(loss.values(), default=0.0)
    return [name for name, value in loss.items() if value <= lowest + RATIO]


def objections(chosen: str, results: Mapping[str, Mapping[str, Any]], data: Data) -> list[str]:
    """Why the points do not single out a power law; empty: its rivals are excluded. `chosen`: the power law of the
    lowest AICc, or the one that was asked for. `results`: per form `aicc` and `held_out` as in fit.json."""
    if chosen not in LAWS:
        return []
    found = []
    untested = [FORM_NAMES[name] for name in RIVALS if not results.get(name, {}).get("enough_points")]
    if untested:
        found.append(f"{count(data.points, 'point')} do not rule out {' or '.join(untested)}")
    best = min(
        (results[n]["aicc"] for n in LAWS if n in results and results[n]["aicc"] is not None), default=None
    )
    near = [name for name in alike(results) if name not in LAWS and FORM_NAMES[name] not in untested]
    near += [
        name
        for name in RIVALS
        if name in results
        and name not in near
        and best is not None
        and _beaten(best, chosen, name, results, data)
    ]
    better = [name for name in near if best is not None and results[name]["aicc"] <= best - MARGIN]
    if better:
        names = f" ({listed([FORM_NAMES[name] for name in better])})"
        found.append(f"{count(len(better), 'other curve')} fit{'s' * (len(better) == 1)} better{names}")
    elif near:
        found.append(f"{listed([FORM_NAMES[name] for name in (chosen, *near)])} fit alike")
    _, y, _ = data.means()
    if y[-1] > y[0]:
        found.append("the other curves that it is compared with cannot rise")
    if ended(data):
        found.append("the last two points are equal within the noise")
    return found


def _beaten(
    best: float, chosen: str, rival: str, results: Mapping[str, Mapping[str, Any]], data: Data
) -> bool:
    """Whether AICc and the held-out point together leave the rival within MARGIN of the law."""
    law, other = results[chosen]["held_out"], results[rival]["held_out"]
    aicc, spread = results[rival]["aicc"], seed_spread(data.log_y, data.group)
    if aicc is None or not law or not other or not spread:
        return False
    last = int((data.x[0] == data.x[0].max()).sum())
    missed = (other["log_error"] ** 2 - law["log_error"] ** 2) * last / spread**2
    return bool(aicc - best + missed < MARGIN)


def ended(data: Data) -> bool:
    """Whether the last two points do not differ in the direction of the trend. Runs at both are paired."""
    _, y, _ = data.means()
    places = np.unique(data.x[0])
    if len(places) < 3:
        return False
    last, before = (data.x[0] == place for place in (places[-1], places[-2]))
    one, two = (dict(zip(np.array(data.runs)[rows], data.log_y[rows])) for rows in (before, last))
    sign = np.sign(np.log(y[0] / y[-1])) or 1.0
    both = [sign * (one[run] - two[run]) for run in one.keys() & two.keys()]
    if len(both) > 1:
        if np.ptp(both) <= TINY:
            return bool(both[0] <= TINY)
        return bool(stats.ttest_1samp(both, 0, alternative="greater").pvalue > EQUAL)
    spread, freedom = seed_spread(data.log_y, data.group), len(data.y) - data.points
    if not spread:
        return False
    change = sign * (data.log_y[before].mean() - data.log_y[last].mean())
    error = spread * math.sqrt(1 / before.sum() + 1 / last.sum())
    return bool(stats.t.sf(change / error, freedom) > EQUAL)
