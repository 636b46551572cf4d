"""A table and a FitSpec -> the content of fit.json."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trm.analysis.fits.bootstrap import resample, together
from trm.analysis.fits.compare import (
    LAWS,
    RIVALS,
    SHOWN,
    Fitted,
    aicc,
    choose,
    delta_for,
    doubts,
    enough,
    fit_form,
    held_out,
    objections,
    possible,
)
from trm.analysis.fits.data import Data, gather, hue_of, on_envelope
from trm.analysis.fits.forms import EXPONENT, FORMS, Array
from trm.analysis.fits.optimum import optimum
from trm.analysis.fits.solve import solve
from trm.analysis.labels import FORM_NAMES
from trm.analysis.specs import FitSpec
from trm.analysis.stats import LEVEL, percentiles, seed_spread
from trm.analysis.tables import Table
from trm.analysis.words import count
from trm.errors import UserError

CURVE = 80
"""Places of the stored curve."""
REACH = 16.0
"""The stored curve runs this factor beyond the largest point."""


def fit_table(table: Table, spec: FitSpec) -> dict[str, Any]:
    """Fit a law, or one for each hue value.

    Returns:
        The content of fit.json (docs/analysis.md). A group that cannot be fitted has `error`, a sentence,
        instead of forms: one bad group does not take the others down.

    Raises:
        UserError: the table lacks a column, or no row matches.
    """
    if spec.form in ("optimum", "isoflop"):
        hue, groups = None, [optimum(table, spec)]
    else:
        hue = hue_of(table, spec)
        groups = [{"hue": _plain(value), **fit_data(data, spec)} for value, data in gather(table, spec)]
    return {"format": 1, "spec": spec.model_dump(mode="json"), "hue": hue, "groups": groups}


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if value != value else value


def fit_data(data: Data, spec: FitSpec) -> dict[str, Any]:
    """Forms, intervals and comparison of one data set."""
    base: dict[str, Any] = {
        "runs": len(set(data.runs)),
        "points": data.points,
        "exclusions": data.exclusions,
        "notes": list(data.notes),
    }
    names = (*SHOWN, *RIVALS) if spec.form in (*SHOWN, "auto") else ("constant", spec.form)
    try:
        usable = [name for name in names if data.points >= len(FORMS[name].parameters)]
        if data.points < 2 or (not set(usable) - {"constant"} and spec.form != "constant"):
            raise UserError(f"{count(data.points, 'usable point')}: too few for a law")
        return {**base, **_forms(data, spec, usable)}
    except UserError as error:
        return {**base, "error": str(error)}


def _forms(data: Data, spec: FitSpec, names: Sequence[str]) -> dict[str, Any]:
    spread = seed_spread(data.log_y, data.group)
    delta = delta_for(spread)
    draws = _draws(data, spec) if spread else None
    results = {name: _form(name, data, spec, delta, draws) for name in names}
    requested = FORM_NAMES.get(spec.form, spec.form.replace("_", " "))
    chosen: str
    if spec.form in results and results[spec.form]["enough_points"]:
        chosen, why = spec.form, "requested"
        if "constant" in results and 0 < results[chosen]["parameters"].get("a", 1.0) <= 1.01 * EXPONENT[0]:
            chosen, why = "constant", f"{requested} was requested, but its exponent fell to the lower bound"
    elif spec.form in (*SHOWN, "auto"):
        chosen, why = choose(results)
        if spec.form != "auto":
            needed = len(FORMS[spec.form].parameters) + 2
            why = f"{requested} was requested but needs {needed} points, there are {data.points}; {why}"
    else:
        chosen, why = spec.form, "requested"
    if chosen != "constant":
        inside = draws.log_y[:, draws.kept] if draws else None
        results[chosen]["held_out"] = held_out(chosen, data, delta, inside)
    x, y, counts = data.means()
    spanned = _spanned(chosen, results, len(data.y)) if draws and chosen in LAWS else []
    why_not = doubts(chosen, results, data.points, spanned) + objections(chosen, results, data)
    if len(spanned) > 1:
        _widen(chosen, results, spanned)
    several = int(counts.max()) > 1
    no_interval = "equal seeds at every point" if several else "one seed a point"
    return {
        "chosen": chosen,
        "why": why,
        "doubts": why_not,
        "spanned": spanned,
        "delta": delta,
        "seed_spread": spread,
        "interval": None if draws is None else LEVEL,
        "notes": list(data.notes) + ([] if draws is not None else [f"{no_interval}: no interval"]),
        "range": [[float(row.min()), float(row.max())] for row in x],
        "forms": results,
        "means": {"x": x.tolist(), "y": y.tolist(), "seeds": counts.tolist()},
    }


@dataclass(frozen=True)
class Draws:
    """Bootstrap data sets of a fit; of an envelope, over all points among which each draw chooses its own."""

    x: Array
    """Variables [v, N]."""
    log_y: Array
    """[B, N]."""
    kept: np.ndarray
    """Which observations the fit itself uses, bool [N]."""
    weights: Array | None
    """Which ones each draw uses [B, N]; None: all."""


def _draws(data: Data, spec: FitSpec) -> Draws:
    every = data.candidates or data
    runs = np.array(every.runs)
    if len(set(runs)) < len(runs):
        logs = together(every.log_y, every.group, runs, spec.bootstrap, spec.seed)
    else:
        logs = resample(every.log_y, every.group, spec.bootstrap, spec.seed)
    kept, weights = np.ones(len(every.y), bool), None
    if data.candidates:
        kept = on_envelope(every, every.log_y)
        weights = np.array([on_envelope(every, draw) for draw in logs], float)
    return Draws(every.x, logs, kept, weights)


def _spanned(chosen: str, results: Mapping[str, dict[str, Any]], count: int) -> list[str]:
    """The forms over which the chosen law's intervals span: those that `count` observations leave possible."""
    # a form with as many parameters as points has no misfit to judge it by
    known = {n: r for n, r in results.items() if "intervals" in r and (r["enough_points"] or n == chosen)}
    names = possible(known, count)
    return names if chosen in names else [chosen]


def _widen(chosen: str, results: Mapping[str, dict[str, Any]], names: Sequence[str]) -> None:
    """Widen the chosen law's intervals to those of all these forms.

    The exponent's spans the power laws; the floor's all forms (a power law without one: 0), and so do the ribbon and
    the price of a target.
    """
    law, parts = results[chosen], [results[name] for name in names]
    bounds = {"a": _span([part["intervals"]["a"] for part in parts if "a" in part["intervals"]])}
    if "E" in law["parameters"]:
        bounds["E"] = _span([part["intervals"].get("E", (0.0, 0.0)) for part in parts])
    law["intervals"] = {**law["intervals"], **bounds}
    lows, highs = (np.array([part["curve"][end] for part in parts]) for end in ("low", "high"))
    law["curve"] |= {"low": lows.min(axis=0).tolist(), "high": highs.max(axis=0).tolist()}
    if "target" in law:
        span = _span([part["target"]["interval"] for part in parts])
        never = float(np.mean([part["target"]["never_share"] for part in parts]))
        law["target"] = {**law["target"], "interval": span, "never_share": never}


def _span(intervals: Sequence[Sequence[float | None]]) -> list[float | None]:
    """From the least lower to the largest upper bound; None is infinite."""
    low, high = (np.array(ends, float) for ends in zip(*intervals))
    ends = np.where(np.isnan(low), np.inf, low).min(), np.where(np.isnan(high), np.inf, high).max()
    return [float(end) if np.isfinite(end) else None for end in ends]


def _form(name: str, data: Data, spec: FitSpec, delta: float, draws: Draws | None) -> dict[str, Any]:
    """One form: its fit and, from the bootstrap data sets, its intervals."""
    fitted = fit_form(name, data, delta)
    form, solution = fitted.form, fitted.solution
    result: dict[str, Any] = {
        "parameters": fitted.parameters,
        "cost": float(solution.cost[0]),
        "converged": bool(solution.converged[0]),
        "at_bound": bool(solution.at_bound[0]),
        "enough_points": enough(form, data.points),
        "aicc": aicc(fitted),
        "held_out": held_out(name, data, delta),
        "curve": None,
    }
    refits = np.empty((0, len(form.parameters)))
    if draws is not None:
        starts = np.concatenate([solution.phi, fitted.starts])
        places = draws.x[: form.variables] / fitted.scale[:, None]
        found = solve(form, places, draws.log_y, delta, starts, refine=3, weights=draws.weights)
        refits = found.phi[found.converged]
        bounds = percentiles(form.public(refits, fitted.scale))
        result |= {
            "failed_share": float(1 - found.converged.mean()),
            "bound_share": float(found.at_bound.mean()),
            "refits": len(draws.log_y),
            "intervals": dict(zip(form.parameters, bounds.T.tolist())),
        }
    if form.variables == 1:
        result["curve"] = _curve(fitted, data, refits)
        if name in LAWS:
            result["reference"] = _reference(fitted, data, refits)
        if spec.target is not None and spec.y == "error":
            result["target"] = _target(fitted, data, refits, spec.target)
    return result


def round_number(value: float) -> float:
    """The nearest of 1, 2, 5 times a power of ten (in ratio)."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(min((step * power for step in (1, 2, 5, 10)), key=lambda near: abs(np.log(near / value))))


def _reference(fitted: Fitted, data: Data, refits: Array) -> dict[str, Any]:
    """A in units of a round x inside the data: the error (above the floor) there."""
    at = round_number(float(np.exp(np.log(data.x[0]).mean())))
    names = fitted.form.parameters
    values = fitted.parameters
    result: dict[str, Any] = {"x": at, "A": values["A"] * at ** -values["a"], "interval": None}
    if len(refits):
        public = fitted.form.public(refits, fitted.scale)
        scaled = public[:, names.index("A")] * at ** -public[:, names.index("a")]
        result["interval"] = percentiles(scaled).tolist()
    return result


def _curve(fitted: Fitted, data: Data, refits: Array) -> dict[str, Any]:
    """The law of one variable at many places, with its ribbon; six digits are enough to draw."""
    x = data.x[0]
    grid = np.unique(np.concatenate([np.geomspace(x.min(), x.max() * REACH, CURVE), np.unique(x)]))
    curve = {"x": grid.tolist(), "y": _short(fitted.predict(grid[None]))}
    if len(refits):
        curve["low"], curve["high"] = map(_short, percentiles(fitted.predict(grid[None], refits)))
    return curve


def _short(values: Array) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def _target(fitted: Fitted, data: Data, refits: Array, accuracy: float) -> dict[str, Any]:
    """The x at which the law reaches the target accuracy: value, interval, share of refits that never do."""
    places = np.geomspace(data.x[0].min() / 100, data.x[0].max() * 1e4, 4000)

    def cross(phi: Array) -> float:
        below = np.flatnonzero(fitted.predict(places[None], phi[None])[0] <= 1 - accuracy)
        return float(places[below[0]]) if len(below) else math.inf

    def known(value: float) -> float | None:
        return value if math.isfinite(value) else None

    answer: dict[str, Any] = {"accuracy": accuracy, "x": known(cross(fitted.solution.phi[0]))}
    if len(refits):
        crossed = [cross(phi) for phi in refits]
        answer["never_share"] = float(np.isinf(crossed).mean())
        bounds = np.percentile(crossed, [50 * (1 - LEVEL), 50 * (1 + LEVEL)], method="nearest")
        answer["interval"] = [known(float(bound)) for bound in bounds]
    return answer
