"""A table and a FitSpec -> the content of fit.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trm.analysis.fits.bootstrap import resample, seed_spread
from trm.analysis.fits.compare import Fitted, aicc, choose, delta_for, doubts, enough, fit_form, held_out
from trm.analysis.fits.data import Data, gather, hue_of
from trm.analysis.fits.forms import EXPONENT, FORMS, Array
from trm.analysis.fits.optimum import optimum
from trm.analysis.fits.solve import Solution, solve
from trm.analysis.specs import FitSpec
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
    if spec.form == "optimum":
        hue = None
        groups = [optimum(table, spec)]
    else:
        hue = hue_of(table, spec)
        groups = [{"hue": _plain(value), **_group(data, spec)} for value, data in gather(table, spec)]
    info = table.info
    return {
        "format": 1,
        "spec": spec.model_dump(mode="json"),
        "study": info.get("study"),
        "scale": info.get("scale"),
        "experiment": table.experiment,
        "hue": hue,
        "data_fingerprint": info.get("fingerprint"),
        "commits": info.get("commits", []),
        "groups": groups,
    }


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if value != value else value


def _group(data: Data, spec: FitSpec) -> dict[str, Any]:
    """Forms, intervals and comparison of one data set."""
    base: dict[str, Any] = {
        "runs": len(data.runs),
        "points": data.points,
        "exclusions": data.exclusions,
        "notes": list(data.notes),
    }
    compared = spec.forms if spec.form in (*spec.forms, "auto") else ("constant",)
    names = [name for name in dict.fromkeys([*compared, spec.form]) if name != "auto"]
    try:
        usable = [name for name in names if data.points >= len(FORMS[name].parameters)]
        if data.points < 2 or (not set(usable) - {"constant"} and spec.form != "constant"):
            raise UserError(f"{count(data.points, 'usable point')}: too few for a law")
        return {**base, **_forms(data, spec, usable)}
    except UserError as error:
        return {**base, "error": str(error)}


def _forms(data: Data, spec: FitSpec, names: Sequence[str]) -> dict[str, Any]:
    spread = seed_spread(data.log_y, data.group)
    delta = spec.delta or delta_for(spread)
    samples = (
        resample(data.log_y, data.group, spec.bootstrap, spec.seed, level=spec.level) if spread else None
    )
    results = {name: _form(name, data, spec, delta, samples) for name in names}
    asked = spec.form.replace("_", " ")
    chosen: str
    if spec.form in results and results[spec.form]["enough_points"]:
        chosen, why = spec.form, "asked for"
        if "constant" in results and 0 < results[chosen]["parameters"].get("a", 1.0) <= 1.01 * EXPONENT[0]:
            chosen, why = "constant", f"{asked} was asked for, but its exponent fell to the least"
    elif spec.form in ("auto", *spec.forms):
        chosen, why = choose(results)
        if spec.form != "auto":
            needed = len(FORMS[spec.form].parameters) + 2
            why = f"{asked} was asked for but needs {needed} points, there are {data.points}; {why}"
    else:
        chosen, why = spec.form, "asked for"
    if chosen != "constant":
        results[chosen]["held_out"] = held_out(chosen, data, delta, samples, spec.level)
    x, y = data.means()
    counts = [int((np.isclose(data.x, x[:, [i]]).all(axis=0)).sum()) for i in range(x.shape[1])]
    return {
        "chosen": chosen,
        "why": why,
        "doubts": doubts(chosen, results, data.points),
        "delta": delta,
        "seed_spread": spread,
        "binomial_spread": _binomial(data),
        "interval": None if samples is None else spec.level,
        "notes": list(data.notes) + ([] if samples is not None else ["one seed a point: no interval"]),
        "range": [[float(row.min()), float(row.max())] for row in x],
        "forms": results,
        "means": {"x": x.tolist(), "y": y.tolist(), "seeds": counts},
    }


def _binomial(data: Data) -> float | None:
    """Mean standard error of log(error) from the finite test set: sqrt((1 - e) / (e n)); None for other
    metrics."""
    if not (data.tested > 0).all():
        return None
    share = np.clip(data.y, 1e-9, 1 - 1e-9)
    return float(np.sqrt(((1 - share) / (share * data.tested)).mean()))


def _form(name: str, data: Data, spec: FitSpec, delta: float, samples: Array | None) -> dict[str, Any]:
    fitted = fit_form(name, data, delta)
    solution = fitted.solution
    result: dict[str, Any] = {
        "parameters": fitted.parameters,
        "cost": float(solution.cost[0]),
        "converged": bool(solution.converged[0]),
        "at_bound": bool(solution.at_bound[0]),
        "enough_points": enough(fitted.form, data.points),
        "aicc": aicc(fitted, len(data.y)),
        "held_out": held_out(name, data, delta),
        "sensitivity": {
            f"{factor:g} delta": fit_form(name, data, factor * delta).parameters for factor in (0.5, 2.0)
        },
    }
    grid = _grid(data, fitted)
    at = round_number(float(np.exp(np.log(data.x[0]).mean())))
    refits = _refits(fitted, data, samples) if samples is not None else None
    result["curve"] = _curve(fitted, grid, refits, spec.level)
    if refits is not None:
        good = refits.converged
        result["failed_share"] = float(1 - good.mean())
        result["bound_share"] = float(refits.at_bound.mean())
        result["refits"] = len(good)
        bounds = percentiles(fitted.form.public(refits.phi[good], fitted.scale), spec.level)
        result["intervals"] = dict(zip(fitted.form.parameters, bounds.T.tolist()))
        at_points = np.exp(fitted.form.log_value(refits.phi[good], fitted.u))
        result["fit_intervals"] = percentiles(at_points, spec.level).T.tolist() if len(at_points) else None
    if "A" in result["parameters"] and fitted.form.variables == 1:
        public = None if refits is None else fitted.form.public(refits.phi[refits.converged], fitted.scale)
        result["reference"] = _reference(fitted, at, public, spec.level)
    if spec.target is not None and fitted.form.variables == 1 and spec.y == "error":
        result["target"] = _target(fitted, data, refits, spec)
    if spec.at is not None and fitted.form.variables == 1:
        result["at"] = _at(fitted, spec.at, refits, spec.level)
    return result


def round_number(value: float) -> float:
    """The nearest of 1, 2, 5 times a power of ten (in ratio)."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(min((step * power for step in (1, 2, 5, 10)), key=lambda near: abs(np.log(near / value))))


def _reference(fitted: Fitted, at: float, public: Array | None, level: float) -> dict[str, Any]:
    """A in units of a round x inside the data: the error (above the floor) there."""
    names = fitted.form.parameters
    values = fitted.parameters
    result: dict[str, Any] = {"x": at, "A": values["A"] * at ** -values["a"], "interval": None}
    if public is not None and len(public):
        scaled = public[:, names.index("A")] * at ** -public[:, names.index("a")]
        result["interval"] = percentiles(scaled, level).tolist()
    return result


def _refits(fitted: Fitted, data: Data, samples: Array) -> Solution:
    """Refit every bootstrap data set, from the full fit and the grid of starts."""
    form = fitted.form
    starts = np.concatenate([fitted.solution.phi, form.starts(fitted.u, data.y)])
    return solve(form, fitted.u, samples, fitted.delta, starts, refine=3)


def percentiles(values: Array, level: float) -> Array:
    """Percentile interval over the first axis: [2, ...]; NaN if there is none."""
    if not len(values):
        return np.full((2, *values.shape[1:]), np.nan)
    tail = 50 * (1 - level)
    return np.percentile(values, [tail, 100 - tail], axis=0)


def _grid(data: Data, fitted: Fitted) -> Array:
    """Places of the stored curve [1, Q]; two-variable laws have none (their figures evaluate the
    parameters)."""
    low, high = data.x[0].min(), data.x[0].max()
    places = np.geomspace(low, high * REACH, CURVE)
    inside = np.unique(data.x[0])
    return np.unique(np.concatenate([places, inside]))[None]


def _curve(fitted: Fitted, grid: Array, refits: Solution | None, level: float) -> dict[str, Any] | None:
    if fitted.form.variables != 1:
        return None
    curve: dict[str, Any] = {"x": grid[0].tolist(), "y": _short(fitted.predict(grid))}
    if refits is not None and refits.converged.any():
        values = np.exp(fitted.form.log_value(refits.phi[refits.converged], grid / fitted.scale[:, None]))
        curve["low"], curve["high"] = (_short(bound) for bound in percentiles(values, level))
    return curve


def _at(fitted: Fitted, x: float, refits: Solution | None, level: float) -> dict[str, Any]:
    """The law at one x, with its interval."""
    place = np.array([[x]])
    result: dict[str, Any] = {"x": x, "y": float(fitted.predict(place)[0]), "interval": None}
    if refits is not None and refits.converged.any():
        values = np.exp(fitted.form.log_value(refits.phi[refits.converged], place / fitted.scale[:, None]))
        result["interval"] = percentiles(values[:, 0], level).tolist()
    return result


def _short(values: Array) -> list[float]:
    """Six digits: enough to draw."""
    return [float(f"{value:.6g}") for value in values]


def _target(fitted: Fitted, data: Data, refits: Solution | None, spec: FitSpec) -> dict[str, Any]:
    """The x at which the law reaches the target accuracy: value, interval, share of refits that never do."""
    error = 1 - float(spec.target or 0)
    places = np.geomspace(data.x[0].min() / 100, data.x[0].max() * 1e4, 4000)[None]

    def cross(phi: Array) -> Array:
        found = np.full(len(phi), np.inf)
        for i, row in enumerate(phi):
            values = np.exp(fitted.form.log_value(row[None], places / fitted.scale[:, None]))[0]
            below = np.flatnonzero(values <= error)
            if len(below):
                found[i] = places[0, below[0]]
        return found

    value = float(cross(fitted.solution.phi)[0])
    answer: dict[str, Any] = {"accuracy": spec.target, "x": value if np.isfinite(value) else None}
    if refits is not None and refits.converged.any():
        found = cross(refits.phi[refits.converged])
        answer["never_share"] = float(np.isinf(found).mean())
        low, high = np.percentile(found, [50 * (1 - spec.level), 50 * (1 + spec.level)], method="nearest")
        answer["interval"] = [
            float(low) if np.isfinite(low) else None,
            float(high) if np.isfinite(high) else None,
        ]
    return answer
