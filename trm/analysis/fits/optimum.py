"""The best value of one knob for every value of another, and its power law (learning rate against batch size).

For each batch size, the optimum is the vertex of the parabola in log(lr) through the lowest mean log error and its two
neighbours. An optimum at the edge of the grid is only a bound: it is marked and left out of the power law.
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


def optimum(table: Table, spec: FitSpec) -> dict[str, Any]:
    """Optimal x for each value of `second`, and x* = A second^a over the optima inside the grid.

    Raises:
        UserError: no row matches.
    """
    rows = table.select(spec.where, [spec.x, str(spec.second)], plain=True)
    if not len(rows):
        raise UserError(f"no row of {table.experiment} matches {spec.where}: nothing to fit")
    data = observations(rows, spec)
    base: dict[str, Any] = {"hue": None, "runs": len(data.runs), "points": data.points}
    base |= {"exclusions": data.exclusions, "notes": list(data.notes)}
    values = np.unique(data.x[1])
    spread = seed_spread(data.log_y, data.group) if data.points else None
    if not data.points or len(values) < 2:
        return {**base, "error": "fewer than two rows of usable points: no optimum to follow"}
    # the measurements come first, then the bootstrap data sets
    samples = data.log_y[None]
    if spread:
        refits = resample(data.log_y, data.group, spec.bootstrap, spec.seed, level=spec.level)
        samples = np.concatenate([samples, refits])

    def bounds(logs: Array) -> Array:
        return percentiles(logs[1:], spec.level)

    vertices, edges = map(np.array, zip(*(_vertex(data, value, samples) for value in values)))
    edge = edges[:, 0]
    optima = [
        {
            "second": float(value),
            "x": float(np.exp(logs[0])),
            "interval": np.exp(bounds(logs)).tolist() if spread else None,
            "edge": bool(at_edge),
        }
        for value, logs, at_edge in zip(values, vertices, edge)
    ]
    result = {**base, "optima": optima, "interval": spec.level if spread else None}
    points = int((~edge).sum())
    if points < 2:
        result["notes"].append("fewer than two optima inside the grid: no power law of the optimum")
        return result
    slopes, offsets = np.polyfit(np.log(values[~edge]), vertices[~edge], 1)
    intervals = {"A": np.exp(bounds(offsets)).tolist(), "a": bounds(slopes).tolist()} if spread else None
    result["law"] = {
        "parameters": {"A": float(np.exp(offsets[0])), "a": float(slopes[0])},
        "intervals": intervals,
        "points": points,
        "enough_points": points > 3,
    }
    return result


def _vertex(data: Data, value: float, samples: Array) -> tuple[Array, np.ndarray]:
    """log of the optimal x at second = value for each data set [B], and whether it lies at the grid's edge."""
    x = np.unique(data.x[0, data.x[1] == value])
    means = np.stack(
        [samples[:, (data.x[0] == place) & (data.x[1] == value)].mean(axis=1) for place in x], axis=1
    )
    best = means.argmin(axis=1)
    edge = (best == 0) | (best == len(x) - 1)
    log_x = np.log(x)
    vertex = log_x[best]
    rows = np.flatnonzero(~edge)
    if len(rows):
        i = best[rows]
        x0, x1, x2 = log_x[i - 1], log_x[i], log_x[i + 1]
        y0, y1, y2 = means[rows, i - 1], means[rows, i], means[rows, i + 1]
        top = (x1 - x0) ** 2 * (y1 - y2) - (x1 - x2) ** 2 * (y1 - y0)
        bottom = (x1 - x0) * (y1 - y2) - (x1 - x2) * (y1 - y0)
        shift = np.where(np.abs(bottom) > 1e-12, 0.5 * top / np.where(bottom == 0, 1, bottom), 0.0)
        vertex[rows] = np.clip(x1 - shift, x0, x2)
    return vertex, edge
