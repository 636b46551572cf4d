"""The best value of one knob for every value of another, and its power law (learning rate against batch size).

For each batch size, the optimum is the vertex of the parabola in log(lr) through the lowest mean log error and its two
neighbours. An optimum at the edge of the grid is only a bound: it is marked and left out of the power law.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trm.analysis.fits.bootstrap import resample, seed_spread
from trm.analysis.fits.data import Data, observations
from trm.analysis.fits.forms import Array
from trm.analysis.specs import FitSpec
from trm.analysis.tables import Table, plain
from trm.errors import UserError


def optimum(table: Table, spec: FitSpec) -> dict[str, Any]:
    """Optimal x for each value of `second`, and x* = A second^a over the optima inside the grid.

    Raises:
        UserError: no row matches.
    """
    rows = plain(table.select(spec.where, [spec.x, str(spec.second)]))
    if not len(rows):
        raise UserError(f"no row of {table.experiment} matches {spec.where}: nothing to fit")
    data = observations(rows, spec)
    base = {"hue": None, "runs": len(data.runs), "points": data.points, "exclusions": data.exclusions}
    values = np.unique(data.x[1])
    spread = seed_spread(data.log_y, data.group) if data.points else None
    if not data.points or len(values) < 2:
        return {
            **base,
            "notes": data.notes,
            "error": "fewer than two rows of usable points: no optimum to follow",
        }
    samples = (
        resample(data.log_y, data.group, spec.bootstrap, spec.seed, level=spec.level)
        if spread
        else data.log_y[None]
    )
    tail = 50 * (1 - spec.level)
    found, inside = [], []
    logs, weights = [], []
    for value in values:
        best, edge = _vertex(data, value, data.log_y[None])
        many, edges = _vertex(data, value, samples)
        low, high = np.percentile(many, [tail, 100 - tail])
        found.append(
            {
                "second": float(value),
                "x": float(np.exp(best[0])),
                "interval": [float(np.exp(low)), float(np.exp(high))] if spread else None,
                "edge": bool(edge[0]),
                "edge_share": float(edges.mean()),
            }
        )
        logs.append(many)
        weights.append(best[0])
        inside.append(not edge[0])
    result: dict[str, Any] = {
        **base,
        "notes": list(data.notes),
        "optima": found,
        "interval": spec.level if spread else None,
    }
    keep = np.array(inside)
    if keep.sum() < 2:
        result["notes"].append("fewer than two optima inside the grid: no power law of the optimum")
        return result
    log_b = np.log(values[keep])
    slope, offset = _line(log_b, np.array(weights)[keep][None])
    slopes, offsets = _line(log_b, np.array(logs)[keep].T)
    result["law"] = {
        "parameters": {"A": float(np.exp(offset[0])), "a": float(slope[0])},
        "intervals": {
            "A": np.exp(np.percentile(offsets, [tail, 100 - tail])).tolist(),
            "a": np.percentile(slopes, [tail, 100 - tail]).tolist(),
        }
        if spread
        else None,
        "points": int(keep.sum()),
        "enough_points": bool(keep.sum() > 3),
    }
    return result


def _vertex(data: Data, value: float, samples: Array) -> tuple[Array, np.ndarray]:
    """log of the optimal x at second = value for each data set [B], and whether it lies at the grid's
    edge."""
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


def _line(x: Array, y: Array) -> tuple[Array, Array]:
    """Least-squares slope and offset of each row of y [B, P] on x [P]."""
    centred = x - x.mean()
    slope = (y * centred).sum(axis=1) / (centred**2).sum()
    return slope, y.mean(axis=1) - slope * x.mean()
