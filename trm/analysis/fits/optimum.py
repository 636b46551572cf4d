"""The best value of one variable for every value of another, and its power law.

Two forms. `optimum` (learning rate against batch size): the vertex of a parabola in logs through the lowest mean and
its two neighbours, as a rate too high diverges and makes the whole curve lopsided. `isoflop` (width at equal compute):
approach 2 of Hoffmann et al. 2022 (arXiv 2203.15556), a parabola through all widths of a budget. Whole seeds are
resampled, and every draw finds its own vertices. An optimum at the edge of the grid is only a bound: it is marked and
left out of the power laws. The best x and the value there come from one parabola, and one test decides on the power law
of each: the logarithms do not bend.

Grids that move with the budget pull flat parabolas' vertices along, and so feign a law. Therefore `isoflop` fits a
second time with one curvature for all budgets, which needs no vertex inside a grid but errs where curvatures differ: a
law is claimed where this fit establishes a minimum, and its intervals cover those of both (benchmarks/claims.py).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from trm.analysis.fits.bootstrap import resample, together
from trm.analysis.fits.data import Data, observations
from trm.analysis.fits.forms import Array
from trm.analysis.specs import EQUAL, LEAST, FitSpec
from trm.analysis.stats import LEVEL, by_number, percentiles, seed_spread
from trm.analysis.tables import Table
from trm.errors import UserError

LAST = 3
"""Optima at the largest values of `second` that give the local exponent."""
RULERS = 4
"""Fewest supervision steps at test time that count as a ruler: a model trained with several is not made to be read
after one."""
WINDOW = 5
"""Most values of `x` through which a parabola is fitted: far from the best, no curve is one."""


def optimum(table: Table, spec: FitSpec) -> dict[str, Any]:
    """The best x for each value of `second`, and the power laws over the optima inside the grid. UserError: no row
    matches."""
    rows = table.select(spec.where, [spec.x, str(spec.second)], plain=True)
    if not len(rows):
        raise UserError(f"no row of {table.experiment} matches {spec.where}: nothing to fit")
    group = best_of(rows, spec)
    if spec.form == "isoflop" and "laws" in group and "eval_steps" in rows:
        group["ruler"] = int(rows["eval_steps"].iloc[0]) if rows["eval_steps"].nunique() == 1 else None
        group["rulers"] = _rulers(table, rows, spec)
    return group


def _rulers(table: Table, rows: pd.DataFrame, spec: FitSpec) -> list[dict[str, Any]]:
    """The exponent of the best x by every number of test steps that all these runs were read at, and (0 steps) with
    each run at its own best; None where fewer than two optima lie inside the grid."""
    where = {key: value for key, value in spec.where.items() if key != "eval_steps"}
    every = table.select({**where, "policy": "fixed"}, [spec.x, str(spec.second)], plain=True)
    every = every[every["run"].isin(rows["run"])]
    runs = rows["run"].nunique()
    parts = {
        int(steps): part for steps, part in by_number(every, "eval_steps") if part["run"].nunique() == runs
    }
    if len(parts) > 1:
        parts[0] = (
            pd.concat(parts.values()).sort_values(spec.y).assign(eval_steps=0)
        )  # each run after its best number of steps
    parts = {steps: part for steps, part in parts.items() if steps == 0 or steps >= RULERS}
    found = []
    for steps, part in parts.items():
        law = best_of(part.drop_duplicates("run"), spec).get("laws", {}).get("x", {})
        found.append({"steps": steps, **{key: law.get(key) for key in ("value", "interval")}})
    return found


def best_of(rows: pd.DataFrame, spec: FitSpec) -> dict[str, Any]:
    """`optimum` of a table's rows."""
    data = observations(rows, spec)
    group: dict[str, Any] = {"hue": None, "runs": len(set(data.runs)), "points": data.points}
    group |= {"exclusions": data.exclusions, "notes": list(data.notes)}
    level = data.x[1] if "." in str(spec.second) else budgets(data.x[1])  # a setting's values are exact
    samples = data.log_y[None]  # the measurements come first, then the bootstrap data sets
    if data.points and seed_spread(data.log_y, data.group):
        samples = np.concatenate([samples, _resampled(data, spec)])
    found = []
    for value in np.unique(level):
        if len(np.unique(data.x[0, level == value])) >= (LEAST if spec.form == "isoflop" else 1):
            found.append(_best(data, level == value, samples, spec))
    if len(found) < 2 and (not found or spec.form == "optimum"):
        return {**group, "error": f"too few values of {spec.x} to find the best one"}
    inside = [item for item in found if not item["edge"]]
    group |= {"interval": LEVEL if len(samples) > 1 else None}
    if len(inside) > 1:
        laws = {key: _power(inside, key) for key in ("x", "best")[: 1 + (spec.form == "isoflop")]}
        if spec.form == "isoflop":
            bend, shared = _equally_curved(found)
            laws["x"]["interval"] = _cover(laws["x"]["interval"], shared)
            if _lower(bend) <= 0:
                laws["x"]["doubts"].append("no minimum is established over all budgets together")
        group["laws"] = laws
    else:
        group["notes"].append("fewer than two optima inside the grid: no power law of the optimum")
    group["optima"] = [{key: value for key, value in item.items() if key != "draws"} for item in found]
    return group


def _resampled(data: Data, spec: FitSpec) -> Array:
    """Bootstrap data sets [B, N]."""
    if spec.form == "optimum" or data.seeds is None:
        return resample(data.log_y, data.group, spec.bootstrap, spec.seed)
    return together(data.log_y, data.group, data.seeds, spec.bootstrap, spec.seed)


def _power(inside: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """The power law of a quantity at the optima: exponent, scale A (the quantity where `second` is 1), whether its
    logarithms bend, the exponent through the last optima if they do, the last optimum predicted from the others, and
    why no law is claimed."""
    places, logs = np.log([item["second"] for item in inside]), np.log([i["draws"][key] for i in inside])
    slopes, offsets = np.polyfit(places, logs, 1)
    law: dict[str, Any] = {
        "value": float(slopes[0]),
        "A": float(np.exp(offsets[0])),
        "interval": _ends(slopes),
    }
    law |= {"points": len(inside), "doubts": [], "local": None}
    if len(inside) < LEAST:
        law["doubts"].append(f"{len(inside)} optima inside the grid are too few for a power law")
        return law
    bend = np.polyfit(places - places.mean(), logs, 2)[0]
    law["curvature"] = {"value": float(bend[0]), "interval": _ends(bend)}
    ahead = np.polyfit(places[:-1], logs[:-1], 1)[0] * places[-1] + np.polyfit(places[:-1], logs[:-1], 1)[1]
    miss = _ends(ahead - logs[-1])
    law["held_out"] = {"second": inside[-1]["second"], "observed": float(np.exp(logs[-1, 0]))}
    law["held_out"] |= {"predicted": float(np.exp(ahead[0])), "interval": None}
    if miss:
        law["held_out"]["interval"] = [float(np.exp(logs[-1, 0] + end)) for end in miss]
    if curved(law["curvature"]):
        local = np.polyfit(places[-LAST:], logs[-LAST:], 1)[0]
        ends = [inside[-LAST]["second"], inside[-1]["second"]]
        law["local"] = {"value": float(local[0]), "interval": _ends(local), "range": ends}
        law["doubts"].append("its logarithms bend")
    return law


def curved(bend: Mapping[str, Any]) -> bool:
    """Whether the interval of a curvature leaves out 0."""
    low, high = bend["interval"] or (0.0, 0.0)
    return bool(low > 0 or high < 0)


def _ends(draws: Array) -> list[float] | None:
    """The interval of draws [1 + B], whose first is the estimate; None: there is none."""
    usable = draws[1:][np.isfinite(draws[1:])]
    return percentiles(usable).tolist() if len(usable) else None


def _cover(interval: list[float] | None, draws: Array) -> list[float] | None:
    """The interval widened to hold that of draws [1 + B]."""
    other = _ends(draws)
    return [min(interval[0], other[0]), max(interval[1], other[1])] if interval and other else interval


def _equally_curved(found: list[dict[str, Any]]) -> tuple[Array, Array]:
    """The curvature [B] of log y = level + bend (log x - a log second - offset)^2 with a level for each budget, and the
    exponent a of the best x. A draw without a minimum has none."""
    rows = []
    for item, level in zip(found, np.eye(len(found))):
        rows += [[*level, x**2, x, x * np.log(item["second"])] for x in item["draws"]["log_x"]]
    means = np.concatenate([item["draws"]["means"] for item in found])
    *_, bend, _, tilt = np.linalg.lstsq(np.array(rows), means, rcond=None)[0]
    return bend, -tilt / (2 * np.where(bend > 0, bend, np.nan))


def _lower(draws: Array) -> float:
    """Lower end of the interval of draws [1 + B], whose first is the estimate."""
    return float(percentiles(draws[1:])[0] if len(draws) > 1 else draws[0])


def budgets(cost: Array) -> Array:
    """The budget of each run [N]: the geometric mean of the costs that exceed the least of them by less than EQUAL."""
    level = np.full(len(cost), np.nan)
    while (left := cost > 0).any():
        same = left & (cost <= EQUAL * cost[left].min())
        level[same] = np.exp(np.log(cost[same]).mean())
        cost = np.where(same, 0.0, cost)
    return level


def _best(data: Data, rows: np.ndarray, samples: Array, spec: FitSpec) -> dict[str, Any]:
    """The optimum of one value of `second`, over all data sets."""
    places = np.unique(data.x[0, rows])
    means = np.empty((len(places), len(samples)))
    for index, place in enumerate(places):  # configurations of one x and budget compete in every data set
        here = rows & (data.x[0] == place)
        apart = [here & (data.group == key) for key in np.unique(data.group[here])]
        means[index] = np.min([samples[:, mask].mean(axis=1) for mask in apart], axis=0)
    if spec.form == "isoflop":
        first = int(np.clip(means[:, 0].argmin() - WINDOW // 2, 0, max(0, len(places) - WINDOW)))
        places, means = (part[first : first + WINDOW] for part in (places, means))
    log_x = np.log(places)
    vertex, edge, shape = (_nearby if spec.form == "optimum" else _through_all)(log_x, means)
    best = {"x": np.exp(vertex)} | ({"best": shape.pop("best")} if "best" in shape else {})
    return {
        "second": float(np.exp(np.log(data.x[1, rows]).mean())),
        **{key: float(draws[0]) for key, draws in best.items()},
        **{f"{key}_interval": _ends(draws) for key, draws in best.items()},
        "edge": edge,
        "range": [float(places[0]), float(places[-1])],
        "draws": best | {"log_x": log_x, "means": means},
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
    """Vertices [B] of the parabola through all means [P, B], and the values there."""
    bend, slope, level_at_0 = np.polyfit(log_x, means, 2)
    vertex = -slope / np.where(bend > 0, 2 * bend, np.nan)
    ends = np.where(means[0] < means[-1], log_x[0], log_x[-1])
    vertex = np.clip(np.where(np.isnan(vertex), ends, vertex), log_x[0], log_x[-1])
    value = np.exp(bend * vertex**2 + slope * vertex + level_at_0)
    shape = {"best": value, "parabola": [float(part[0]) for part in (bend, slope, level_at_0)]}
    return vertex, bool(vertex[0] in (log_x[0], log_x[-1])), shape
