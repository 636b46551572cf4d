"""Where is compute best spent: in width or in steps? The best width at equal training compute, and how it grows.

Approach 2 of Hoffmann et al. 2022 (arXiv 2203.15556): at each budget a parabola in log width through the mean log
errors of all widths; its vertex is the best width, and a power law joins the vertices. Runs are resampled, and every
draw finds its own vertices. A budget whose parabola has no minimum inside its widths only bounds the optimum.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trm.analysis.fits.bootstrap import resample
from trm.analysis.fits.compare import percentiles
from trm.analysis.fits.data import Data, observations
from trm.analysis.fits.forms import Array
from trm.analysis.specs import FitSpec
from trm.analysis.stats import seed_spread
from trm.analysis.tables import Table
from trm.errors import UserError

EQUAL = 1.1
"""Budgets that differ by less are one: runs end at whole steps."""


def isoflop(table: Table, spec: FitSpec) -> dict[str, Any]:
    """The best x at each budget of `second`, what a wrong x costs, and the power laws of the best x and its steps.

    Raises:
        UserError: no row matches.
    """
    rows = table.select(spec.where, [spec.x, str(spec.second)], plain=True)
    if not len(rows):
        raise UserError(f"no row of {table.experiment} matches {spec.where}: nothing to fit")
    data = observations(rows, spec)
    steps = dict(zip(rows["run"], rows["training.steps"].astype(float)))
    group: dict[str, Any] = {"hue": None, "runs": len(set(data.runs)), "points": data.points}
    group |= {"exclusions": data.exclusions, "notes": list(data.notes)}
    samples = data.log_y[None]  # the measurements come first, then the bootstrap data sets
    if seed_spread(data.log_y, data.group):
        draws = resample(data.log_y, data.group, spec.bootstrap, spec.seed, level=spec.level)
        samples = np.concatenate([samples, draws])
    cost = budgets(data.x[1]) if data.points else np.empty(0)
    found = [_best(data, cost == value, steps, samples, spec.level) for value in np.unique(cost)]
    optima = [item for item in found if item]
    if not optima:
        return {**group, "error": "no budget has four usable widths: no parabola can be tested"}
    inside = [item for item in optima if not item["edge"]]
    group |= {"interval": spec.level if len(samples) > 1 else None, "law": None, "optima": []}
    if len(inside) > 1:
        places = np.log([item["second"] for item in inside])
        laws = {}
        for name in ("x", "steps"):
            slopes, _ = np.polyfit(places, np.log([item["draws"][name] for item in inside]), 1)
            laws[name] = _value(slopes, spec.level)
        slope, offset = np.polyfit(places, np.log([item["draws"]["x"][0] for item in inside]), 1)
        group["law"] = {
            "A": float(np.exp(offset)),
            "a": float(slope),
            "exponents": laws,
            "points": len(inside),
        }
        group["law"]["enough_points"] = len(inside) > 3
    group["optima"] = [{key: value for key, value in item.items() if key != "draws"} for item in optima]
    return group


def budgets(cost: Array) -> Array:
    """The budget of each run [N]: the geometric mean of the costs that differ by less than EQUAL."""
    order = np.argsort(cost)
    label = np.zeros(len(cost), int)
    label[order[1:]] = np.cumsum(cost[order][1:] > EQUAL * cost[order][:-1])
    return np.asarray(np.exp(np.bincount(label, np.log(cost)) / np.bincount(label))[label])


def _value(draws: Array, level: float) -> dict[str, Any]:
    """The estimate, which is the first draw, and its interval."""
    bounds = percentiles(draws[1:], level).tolist() if len(draws) > 1 else None
    return {"value": float(draws[0]), "interval": bounds}


def _best(
    data: Data, rows: np.ndarray, steps: dict[str, float], samples: Array, level: float
) -> dict[str, Any] | None:
    """The parabola of one budget; None: fewer than four widths."""
    places = np.unique(data.x[0, rows])
    if len(places) < 4:
        return None
    here = [rows & (data.x[0] == place) for place in places]
    log_x = np.log(places)
    means = np.stack([samples[:, mask].mean(axis=1) for mask in here])
    lengths = np.log([steps[data.runs[int(np.flatnonzero(mask)[0])]] for mask in here])
    bend, slope, level_at_0 = np.polyfit(log_x, means, 2)
    vertex = -slope / np.where(bend > 0, 2 * bend, np.nan)
    ends = np.where(means[0] < means[-1], log_x[0], log_x[-1])
    vertex = np.clip(np.where(np.isnan(vertex), ends, vertex), log_x[0], log_x[-1])
    value = np.exp(bend * vertex**2 + slope * vertex + level_at_0)
    bent = _value(bend, level)
    low = bent["interval"][0] if bent["interval"] else bent["value"]
    at_end = bool(vertex[0] in (log_x[0], log_x[-1]))
    best = {"x": np.exp(vertex), "steps": np.exp(np.interp(vertex, log_x, lengths))}
    return {
        "second": float(np.exp(np.log(data.x[1, rows]).mean())),
        "x": float(best["x"][0]),
        "interval": percentiles(best["x"][1:], level).tolist() if len(samples) > 1 else None,
        "steps": float(best["steps"][0]),
        "value": float(value[0]),
        "edge": at_end or low <= 0,
        "doubling": _value(np.expm1(bend * np.log(2) ** 2), level),
        "parabola": [float(part[0]) for part in (bend, slope, level_at_0)],
        "range": [float(places[0]), float(places[-1])],
        "draws": best,
    }
