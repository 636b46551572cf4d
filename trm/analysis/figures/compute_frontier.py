"""Study-wide: what compute buys, in training and at test time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from trm.analysis.figures.base import (
    MARKERS,
    OKABE_ITO,
    TWO,
    Drawing,
    axis_scale,
    canvas,
    finish,
    heading,
    legend,
    strip_of,
)
from trm.analysis.labels import label
from trm.analysis.sentences.special import frontier_sentence
from trm.analysis.specs import ComputeFrontierFigure
from trm.analysis.stats.pareto import frontier
from trm.analysis.tables import Table
from trm.analysis.words import point_name
from trm.errors import UserError

POLICIES = ("fixed", "confident", "restarts")
"""What a user could run; majority and oracle stand in the frontier figure of the experiment."""


def draw(spec: ComputeFrontierFigure, tables: list[Table], fits: list[dict[str, Any]]) -> Drawing:
    """Left: grid points by training FLOPs. Right: evaluations by test-time FLOPs. Both with their frontiers."""
    shown = [table for table in tables if table.experiment in spec.sources]
    if not shown:
        raise UserError("none of the experiments of compute_frontier has a table")
    names = [table.experiment for table in shown]
    shades = dict(zip(names, _shades(len(names))))
    figure, axes = canvas(TWO, 3.0, 1, 2, sharey=True, strip=strip_of(len(names), 4))
    train, test, every = [], [], []
    for index, table in enumerate(shown):
        rows = table.select(spec.where)
        every.append(rows)
        marker = MARKERS[index % len(MARKERS)]
        train += _points(axes[0, 0], rows, "train_flops", table.experiment, shades[table.experiment], marker)
        for policy in POLICIES:
            part = table.select({**spec.where, "policy": policy})
            part = part[pd.to_numeric(part["flops_per_puzzle"], errors="coerce").notna()]
            if len(part):
                test += _points(
                    axes[0, 1], part, "flops_per_puzzle", table.experiment, shades[table.experiment], marker
                )
    kept = [_edge(axes[0, 0], train, "train_flops"), _edge(axes[0, 1], test, "flops_per_puzzle")]
    for axis, column, text in (
        (axes[0, 0], "train_flops", "Training compute"),
        (axes[0, 1], "flops_per_puzzle", "Test-time compute"),
    ):
        points = train if column == "train_flops" else test
        axis_scale(axis, "x", label(column), np.array([point[1] for point in points]), log=True)
        heading(axis, text)
    values = np.array([point[2] for point in train + test])
    axis_scale(axes[0, 0], "y", label("exact_accuracy"), values, log=False)
    handles = [
        axes[0, 0].plot([], [], MARKERS[i % len(MARKERS)], color=shades[n], label=n.replace("_", " "))[0]
        for i, n in enumerate(names)
    ]
    legend(figure, handles, 4)
    return finish(
        figure,
        spec,
        shown,
        pd.concat(every),
        title=spec.title or "The compute-accuracy frontier",
        caption=(
            "Means over seeds: every grid point of the study by its training compute (left), every evaluation by its "
            "test-time compute (right: fixed steps, stopping on the halt logit, restarts picked by it). Black: "
            "frontier."
        ),
        sentence=" ".join(
            frontier_sentence(item, column) for item, column in zip(kept, ("train_flops", "test_flops"))
        ),
        numbers={"training": kept[0], "test": kept[1]},
    )


def _shades(count: int) -> list[str]:
    """Seven colours against eight marks: every pair is new for 56 experiments."""
    return [OKABE_ITO[index % 7] for index in range(count)]


def _points(
    axes: Axes, rows: pd.DataFrame, column: str, name: str, colour: str, marker: str
) -> list[tuple[str, float, float]]:
    """Means over seeds of each setting: (name, cost, accuracy)."""
    keys = ["point", "policy", "eval_steps", "restarts"]
    found = []
    for _, part in rows.groupby(keys, sort=True):
        cost, value = float(part[column].mean()), float(part["exact_accuracy"].mean())
        axes.plot(cost, value, marker, color=colour, alpha=0.7, markersize=3.2, markeredgewidth=0)
        found.append((f"{name.replace('_', ' ')}: {point_name(part['label'].iloc[0])}", cost, value))
    return found


def _edge(axes: Axes, points: list[tuple[str, float, float]], column: str) -> list[tuple[str, float, float]]:
    """The frontier of the means, drawn and returned."""
    cost, value = (np.array([point[i] for point in points], float) for i in (1, 2))
    best = frontier(cost, value)
    axes.plot(cost[best], value[best], color="black", linewidth=1, drawstyle="steps-post", zorder=1)
    return [points[i] for i in best]
