"""The best value of one variable for every value of another, and its power law.

Two forms. `optimum` (learning rate against batch size): the vertex of a parabola in logs through the lowest mean and
its two neighbours, as a rate too high diverges and makes the whole curve lopsided. `isoflop` (width at equal compute):
approach 2 of Hoffmann et al. 2022 (arXiv 2203.15556), a parabola through all widths of a budget, and the steps that
the best width leaves. Whole seeds are resampled, and every draw finds its own vertices. An optimum at the edge of the
grid is only a bound: it is marked and left out of the power law, which is claimed only if its logarithms do not bend.

Grids that move with the budget pull flat parabolas' vertices along, and so feign a law. Therefore `isoflop` fits a
second time with one curvature for all budgets, which needs no vertex inside a grid but errs where curvatures differ: a
law is claimed where this fit establishes a minimum, and its intervals cover those of both (benchmarks/isoflop.py).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from trm.analysis.fits.bootstrap import by_seed, resample
from trm.analysis.fits.data import Data, observations
from trm.analysis.fits.forms import Array
from trm.analysis.specs import FitSpec
from trm.analysis.stats import LEVEL, percentiles, seed_spread
from trm.analysis.tables import Table
from trm.errors import UserError

EQUAL = 1.1
"""Values of `second` that differ by less are one: runs of a budget end at whole steps."""
LEAST = {"optimum": 1, "isoflop": 4}
"""Fewest values of `x` that can have an optimum, and fewest optima whose logarithms can bend."""
LAST = 3
"""Optima at the largest values of `second` that give the local exponent."""
WINDOW = 5
"""Most values of `x` through which a parabola is fitted: far from the best, no curve is one."""


def optimum(table: Table, spec: FitSpec) -> dict[str, Any]:
    """The best x for each value of `second`, and x* = A second^a over the optima inside the grid. UserError: no row
    matches."""
    rows = table.select(spec.where, [spec.x, str(spec.second)], plain=True)
    if not len(rows):
        raise UserError(f"no row of {table.experiment} matches {spec.where}: nothing to fit")
    return best_of(rows, spec)


def best_of(rows: pd.DataFrame, spec: FitSpec) -> dict[str, Any]:
    """`optimum` of a table's rows."""
    data = observations(rows, spec)
    steps = dict(zip(rows["run"], rows["training.steps"].astype(float)))
    group: dict[str, Any] = {"hue": None, "runs": len(set(data.runs)), "points": data.points}
    group |= {"exclusions": data.exclusions, "notes": list(data.notes)}
    level = budgets(data.x[1]) if data.points else np.empty(0)
    samples = data.log_y[None]  # the measurements come first, then the bootstrap data sets
    if data.points and seed_spread(data.log_y, data.group):
        samples = np.concatenate([samples, _resampled(data, spec)])
    found = []
    for value in np.unique(level):
        if len(np.unique(data.x[0, level == value])) >= LEAST[spec.form]:
            found.append(_best(data, level == value, steps, samples, spec))
    if len(found) < 2 and (not found or spec.form == "optimum"):
        return {**group, "error": f"too few values of {spec.x} to find the best one"}
    inside = [item for item in found if not item["edge"]]
    group |= {"interval": LEVEL if len(samples) > 1 else None, "law": None}
    if len(inside) > 1:
        powers, doubts = [_through_vertices(inside)], []
        if spec.form == "isoflop":
            bend, shared = _equally_curved(found, inside)
            powers.append(shared)
            if _lower(bend) <= 0:
                doubts.append("no minimum is established over all budgets together")
        group["law"] = _law(powers, len(inside)) | _bend(inside, doubts)
    else:
        group["notes"].append("fewer than two optima inside the grid: no power law of the optimum")
    group["optima"] = [{key: value for key, value in item.items() if key != "draws"} for item in found]
    return group


def _resampled(data: Data, spec: FitSpec) -> Array:
    """Bootstrap data sets [B, N]."""
    if spec.form == "optimum" or data.seeds is None:
        return resample(data.log_y, data.group, spec.bootstrap, spec.seed)
    return by_seed(data.log_y, data.group, data.seeds, spec.bootstrap, spec.seed)


def _bend(inside: list[dict[str, Any]], doubts: list[str]) -> dict[str, Any]:
    """Whether the logarithms of the best x bend, and the exponents between the last optima: what holds if they do."""
    places, best = np.log([item["second"] for item in inside]), np.log([i["draws"]["x"] for i in inside])
    law: dict[str, Any] = {"doubts": doubts, "local": None}
    if len(inside) < LEAST["isoflop"] or best.shape[1] < 2:
        return law
    bend = np.polyfit(places - places.mean(), best, 2)[0]
    law["curvature"] = {"value": float(bend[0]), "interval": percentiles(bend[1:]).tolist()}
    if curved(law["curvature"]):
        slopes = np.polyfit(places[-LAST:], best[-LAST:], 1)[0]
        bounds = percentiles(slopes[1:]).tolist()
        ends = [inside[-LAST]["second"], inside[-1]["second"]]
        law["local"] = {"value": float(slopes[0]), "interval": bounds, "range": ends}
        doubts.append("its logarithms bend")
    return law


def curved(bend: Mapping[str, Any]) -> bool:
    """Whether the interval of a curvature leaves out 0."""
    low, high = bend["interval"]
    return bool(low > 0 or high < 0)


def _through_vertices(inside: list[dict[str, Any]]) -> dict[str, Array]:
    """Exponents [B] of the best x and of the steps that it leaves, through the vertices; A: x where `second` is 1."""
    places = np.log([item["second"] for item in inside])
    slopes, offsets = np.polyfit(places, np.log([item["draws"]["x"] for item in inside]), 1)
    steps, _ = np.polyfit(places, np.log([item["draws"]["steps"] for item in inside]), 1)
    return {"a": slopes, "A": np.exp(offsets), "steps": steps}


def _equally_curved(
    found: list[dict[str, Any]], inside: list[dict[str, Any]]
) -> tuple[Array, dict[str, Array]]:
    """The curvature [B] of log y = level + bend (log x - a log second - offset)^2 with a level for each budget, and the
    same exponents as `_through_vertices`. A draw without a minimum has none."""
    rows = []
    for item, level in zip(found, np.eye(len(found))):
        rows += [[*level, x**2, x, x * np.log(item["second"])] for x in item["draws"]["log_x"]]
    means = np.concatenate([item["draws"]["means"] for item in found])
    *_, bend, slope, tilt = np.linalg.lstsq(np.array(rows), means, rcond=None)[0]
    least = np.where(bend > 0, bend, np.nan)
    places = np.log([item["second"] for item in inside])
    lengths = []
    for item, at in zip(inside, places):
        vertex = -(slope + tilt * at) / (2 * least)
        lengths.append(np.polyval(np.polyfit(item["draws"]["log_x"], item["draws"]["lengths"], 2), vertex))
    centred = places - places.mean()
    return bend, {"a": -tilt / (2 * least), "steps": centred @ np.array(lengths) / (centred @ centred)}


def _lower(draws: Array) -> float:
    """Lower end of the interval of draws [1 + B], whose first is the estimate."""
    return float(percentiles(draws[1:])[0] if len(draws) > 1 else draws[0])


def _law(powers: list[dict[str, Array]], points: int) -> dict[str, Any]:
    """The power laws of the best x and of the steps that it leaves, as fit.json holds them: the first of `powers`, with
    intervals that cover those of all."""
    values = {key: float(draws[0]) for key, draws in powers[0].items()}
    drawn: dict[str, list[float]] = {}
    for power in powers:
        for key, draws in power.items():
            usable = draws[1:][np.isfinite(draws[1:])]
            if len(usable):
                low, high = percentiles(usable)
                known = drawn.get(key, [low, high])
                drawn[key] = [float(min(low, known[0])), float(max(high, known[1]))]
    return {"parameters": values, "intervals": drawn or None, "points": points, "enough_points": points > 3}


def budgets(cost: Array) -> Array:
    """The budget of each run [N]: the geometric mean of the costs that differ by less than EQUAL."""
    order = np.argsort(cost)
    label = np.zeros(len(cost), int)
    label[order[1:]] = np.cumsum(cost[order][1:] > EQUAL * cost[order][:-1])
    return np.asarray(np.exp(np.bincount(label, np.log(cost)) / np.bincount(label))[label])


def _best(
    data: Data, rows: np.ndarray, steps: dict[str, float], samples: Array, spec: FitSpec
) -> dict[str, Any]:
    """The optimum of one value of `second`, over all data sets."""
    places = np.unique(data.x[0, rows])
    means = np.stack([samples[:, rows & (data.x[0] == place)].mean(axis=1) for place in places])
    if spec.form == "isoflop":
        first = int(np.clip(means[:, 0].argmin() - WINDOW // 2, 0, max(0, len(places) - WINDOW)))
        places, means = places[first : first + WINDOW], means[first : first + WINDOW]
    here = [rows & (data.x[0] == place) for place in places]
    log_x = np.log(places)
    lengths = np.log([steps[data.runs[int(np.flatnonzero(mask)[0])]] for mask in here])
    vertex, edge, shape = (_nearby if spec.form == "optimum" else _through_all)(log_x, means)
    best = {"x": np.exp(vertex), "steps": np.exp(np.interp(vertex, log_x, lengths))}
    curve = {"log_x": log_x, "means": means, "lengths": lengths}
    return {
        "second": float(np.exp(np.log(data.x[1, rows]).mean())),
        "x": float(best["x"][0]),
        **{
            f"{key}_interval": percentiles(draws[1:]).tolist() if len(draws) > 1 else None
            for key, draws in best.items()
        },
        "steps": float(best["steps"][0]),
        "edge": edge,
        "range": [float(places[0]), float(places[-1])],
        "draws": best | curve,
        **shape,
    }


def _nearby(log_x: Array, means: Array) -> tuple[Array, bool, dict[str, Any]]:
    """Vertices [B] of the parabola through the lowest of the means [P, B] and its neighbours; at the edge the end."""
    best = means.argmin(axis=0)
    vertex, inside = log_x[best], np.flatnonzero((best > 0) & (best < len(log_x) - 1))
    i = best[inside]
    x0, x1, x2 = (log_x[i + step] for step in (-1, 0, 1))
    y0, y1, y2 = (means[i + step, inside] for step in (-1, 0, 1))
    left, right = (x1 - x0) * (y1 - y2), (x1 - x2) * (y1 - y0)
    bottom = left - right
    shift = 0.5 * ((x1 - x0) * left - (x1 - x2) * right) / np.where(np.abs(bottom) > 1e-12, bottom, np.inf)
    vertex[inside] = np.clip(x1 - shift, x0, x2)
    return vertex, bool(best[0] in (0, len(log_x) - 1)), {}


def _through_all(log_x: Array, means: Array) -> tuple[Array, bool, dict[str, Any]]:
    """Vertices [B] of the parabola through all means [P, B], and what twice or half the best x costs."""
    bend, slope, level_at_0 = np.polyfit(log_x, means, 2)
    vertex = -slope / np.where(bend > 0, 2 * bend, np.nan)
    ends = np.where(means[0] < means[-1], log_x[0], log_x[-1])
    vertex = np.clip(np.where(np.isnan(vertex), ends, vertex), log_x[0], log_x[-1])
    value = np.exp(bend * vertex**2 + slope * vertex + level_at_0)
    doubling = np.expm1(bend * np.log(2) ** 2)
    bounds = percentiles(doubling[1:]).tolist() if len(bend) > 1 else None
    shape = {
        "value": float(value[0]),
        "doubling": {"value": float(doubling[0]), "interval": bounds},
        "parabola": [float(part[0]) for part in (bend, slope, level_at_0)],
    }
    return vertex, bool(vertex[0] in (log_x[0], log_x[-1])), shape
