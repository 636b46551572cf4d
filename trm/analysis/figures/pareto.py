"""Accuracy against one cost or several, with the Pareto frontier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from trm.analysis.figures.base import (
    MARKERS,
    ONE,
    Drawing,
    axis_scale,
    canvas,
    colours,
    finish,
    heading,
    hue_name,
    is_value,
    legend,
    legend_title,
    ordered,
    strip_of,
    table_of,
    with_hue,
)
from trm.analysis.labels import label
from trm.analysis.sentences.comparisons import pareto_sentence
from trm.analysis.specs import ParetoFigure
from trm.analysis.stats.intervals import mean
from trm.analysis.stats.pareto import frontier
from trm.analysis.tables import Table
from trm.analysis.words import point_name
from trm.errors import UserError

MOST_NAMES = 8
"""Most frontier points whose names are written beside them."""


def draw(spec: ParetoFigure, tables: list[Table], fits: list[dict[str, Any]]) -> Drawing:
    """One panel a cost."""
    table = table_of(tables, tables[0].experiment)
    spec = with_hue(spec, table, table.select(spec.where), [])
    rows = table.select(spec.where, [spec.y, *([spec.hue] if spec.hue else [])])
    costs = [
        name for name in (spec.cost, *spec.costs) if pd.to_numeric(rows[name], errors="coerce").notna().any()
    ]
    if not costs:
        raise UserError(f"no run of {table.experiment} has {spec.cost}: nothing to draw against")
    hues = ordered(rows[spec.hue]) if spec.hue else [None]
    across = 2 if spec.hue == "series" else 6
    shades = colours(hues)
    wide = min(3, len(costs))
    strip = strip_of(len(hues), across, title=True) if spec.hue else 0.0
    width = 1.35 * ONE if wide == 1 else 2.75 * wide
    figure, axes = canvas(width, 2.7 * -(-len(costs) // wide), -(-len(costs) // wide), wide, strip=strip)
    kept: dict[str, list[tuple[str, float, float]]] = {}
    for place, (axis, cost) in enumerate(zip(axes.flat, costs)):
        kept[cost] = _panel(axis, rows, spec, cost, hues, shades)
        if place % wide:
            axis.set_ylabel("")
    for axis in list(axes.flat)[len(costs) :]:
        axis.set_axis_off()
    title = spec.title or f"{label(spec.y).name.split(' on ')[0].capitalize()} against cost"
    heading(axes[0, 0], title)
    if spec.hue:
        handles = [
            axes[0, 0].plot(
                [], [], MARKERS[i % len(MARKERS)], color=shades[hue], label=hue_name(spec.hue, hue)
            )[0]
            for i, hue in enumerate(hues)
        ]
        legend(figure, handles, across, legend_title(spec.hue, rows))
    total = rows["point"].nunique()
    return finish(
        figure,
        spec,
        [table],
        rows,
        title=title,
        caption=(
            "One mark a grid point: mean over its seeds with Student 95 % interval. Black line: Pareto frontier of the "
            "means; what lies on it is beaten by nothing cheaper. Pale marks are dominated."
        ),
        sentence=" ".join(pareto_sentence(kept[cost], total, cost, spec.y) for cost in costs),
        numbers={"frontier": kept},
    )


def _panel(
    axes: Axes, rows: pd.DataFrame, spec: ParetoFigure, cost: str, hues: list[Any], shades: dict[Any, str]
) -> list[tuple[str, float, float]]:
    """Draw one cost; returns the frontier as (name, cost, value)."""
    points = []
    for _, part in rows.groupby("point", sort=True):
        price = pd.to_numeric(part[cost], errors="coerce").mean()
        summary = mean(part[spec.y])
        if np.isfinite(price) and summary.n:
            hue = next((h for h in hues if spec.hue and bool(is_value(part[spec.hue], h).all())), None)
            points.append((point_name(part["label"].iloc[0]), float(price), summary, hue))
    if not points:
        raise UserError(f"no grid point has both {cost} and {spec.y}")
    prices = np.array([point[1] for point in points])
    values = np.array([point[2].value for point in points])
    best = frontier(prices, values, higher_is_better="error" not in spec.y and "entropy" not in spec.y)
    for index, (_, price, summary, hue) in enumerate(points):
        marker = MARKERS[hues.index(hue) % len(MARKERS)]
        strength = 1.0 if index in best else 0.35
        if summary.bounds:
            low, high = summary.bounds
            if label(spec.y).percent:
                low, high = max(0.0, low), min(1.0, high)
            axes.plot([price, price], [low, high], color=shades[hue], alpha=strength, linewidth=1)
        axes.plot(price, summary.value, marker, color=shades[hue], alpha=strength)
    axes.plot(prices[best], values[best], color="black", linewidth=0.9, drawstyle="steps-post", zorder=1)
    axis_scale(axes, "x", label(cost), prices)
    axis_scale(axes, "y", label(spec.y), values, log=False)
    _names(axes, points, best)
    return [(points[i][0], float(prices[i]), float(values[i])) for i in best]


def _names(axes: Axes, points: list[Any], best: np.ndarray) -> None:
    """Names of frontier points, left out where they would run into one before."""
    low, high = axes.get_ylim()
    lowest = min(points[index][2].value for index in best)
    low = min(low, lowest - 0.1 * (high - low))  # a name below the lowest point needs room
    axes.set_ylim(low, high)
    wide = axes.figure.get_figwidth() / len(axes.figure.axes)
    taken: list[tuple[float, float, float]] = []
    for index in best[:MOST_NAMES]:
        name, price, summary, _ = points[index]
        height = (summary.value - low) / (high - low)
        place = axes.transLimits.transform(axes.transScale.transform((price, summary.value)))[0]
        length = len(name) * 5.8 * 0.6 / 72 / wide
        # right below the point, else left above it: the frontier runs to its left below
        right = place + length < 0.93
        start, end = (place, place + length) if right else (place - length, place)
        if any(abs(height - y) < 0.06 and start < b and a < end for a, b, y in taken):
            continue
        taken.append((start, end, height))
        axes.annotate(
            name,
            (price, summary.value),
            xytext=(5, -7) if right else (-5, 4),
            textcoords="offset points",
            fontsize=5.8,
            ha="left" if right else "right",
        )
