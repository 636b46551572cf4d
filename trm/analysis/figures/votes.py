"""ARC tasks solved: the unaltered task alone, the first answer by vote, two answers by vote."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from trm.analysis.figures.base import (
    GREY,
    OKABE_ITO,
    ONE,
    TWO,
    Drawing,
    axis_scale,
    canvas,
    finish,
    heading,
    table_of,
    wrap,
)
from trm.analysis.labels import Label
from trm.analysis.sentences.special import votes_sentence
from trm.analysis.specs import VotesFigure
from trm.analysis.stats.intervals import mean
from trm.analysis.tables import Table
from trm.errors import UserError

WAYS = {
    "fixed": "no vote: the task as it is",
    "vote_first": "vote, one attempt",
    "vote": "vote, two attempts",
}
MOST = 30
"""Most tasks drawn one by one."""


def draw(spec: VotesFigure, tables: list[Table], fits: list[dict[str, Any]]) -> Drawing:
    """Left: share of tasks solved in each way, a dot a seed. Right: which tasks, where there are few."""
    table = table_of(tables, tables[0].experiment)
    rows = {way: _rows(table, spec, way) for way in WAYS}
    if not len(rows["vote"]):
        raise UserError(f"no evaluation of {table.experiment} let copies vote: the task must be arc")
    runs = list(rows["vote"]["run"])
    known = table.info.get("tasks", {})
    tasks = known.get(runs[0]) or []
    same = all([t["task"] for t in known.get(run) or []] == [t["task"] for t in tasks] for run in runs)
    each = bool(tasks) and same and len(tasks) <= MOST
    height = max(1.9, 0.75 + 0.19 * len(tasks)) if each else 1.9
    figure, axes = canvas(TWO if each else 1.3 * ONE, height, 1, 2 if each else 1)
    found = {way: _share(axes[0, 0], place, part) for place, (way, part) in enumerate(rows.items())}
    axes[0, 0].set_yticks(range(len(WAYS)), [wrap(name, 20) for name in WAYS.values()])
    axes[0, 0].set_ylim(len(WAYS) - 0.5, -0.5)
    axis_scale(axes[0, 0], "x", Label("tasks solved", percent=True), np.array([]), log=False)
    axes[0, 0].set_xlim(-0.03, 1.03)
    axes[0, 0].grid(axis="y", visible=False)
    title = spec.title or "ARC tasks solved with two attempts"
    heading(axes[0, 0], title)
    names = [task["task"] for task in tasks] if same else []
    first, second = (
        {name: float(np.mean([known[run][i][way] for run in runs])) for i, name in enumerate(names)}
        for way in ("vote_first", "vote")
    )
    if each:
        _tasks(axes[0, 1], first, second)
    count = float(rows["vote"]["puzzles"].iloc[0])
    copies = int(rows["vote"]["restarts"].max())
    return finish(
        figure,
        spec,
        [table],
        rows["vote"],
        title=title,
        caption=(
            f"A task's hidden inputs are answered in {copies} versions, turned and recoloured; the answers are turned "
            "back and vote. A task counts by the share of its inputs whose right grid is among the attempts. Small "
            "dots: seeds; mean with Student 95 % interval. "
            + (
                "Right: share of the seeds that solve each task (hollow: with the first attempt)."
                if each
                else ""
            )
        ),
        sentence=votes_sentence(found, count, second),
        numbers={"tasks": count, "copies": copies, "solved": found, "by_task": second},
    )


def _rows(table: Table, spec: VotesFigure, way: str) -> pd.DataFrame:
    """A way's rows, one a run; of the fixed policy the deepest."""
    rows = table.select({**spec.where, "policy": way})
    return rows.sort_values("eval_steps").drop_duplicates("run", keep="last")


def _share(axes: Axes, place: int, rows: pd.DataFrame) -> dict[str, float | None]:
    """One way's seeds, mean and interval."""
    data = rows["exact_accuracy"].to_numpy(float)
    summary = mean(data)
    colour = OKABE_ITO[0] if place else GREY
    axes.plot(data, [place] * len(data), "o", color=colour, alpha=0.4, markersize=3, markeredgewidth=0)
    bounds = (max(0.0, summary.bounds[0]), min(1.0, summary.bounds[1])) if summary.bounds else None
    if bounds:
        axes.plot(bounds, [place, place], color=colour, linewidth=1.2)
    axes.plot(summary.value, place, "o", color=colour, markersize=5)
    return {
        "value": summary.value,
        "low": bounds[0] if bounds else None,
        "high": bounds[1] if bounds else None,
    }


def _tasks(axes: Axes, first: dict[str, float], second: dict[str, float]) -> None:
    """A line for each task from none of the seeds to the share that solves it."""
    for place, (name, share) in enumerate(second.items()):
        axes.plot([0, share], [place, place], color=OKABE_ITO[0], linewidth=1.2, zorder=2)
        axes.plot(share, place, "o", color=OKABE_ITO[0], markersize=5, zorder=4)
        axes.plot(
            first[name], place, "o", color=OKABE_ITO[0], markerfacecolor="white", markersize=4, zorder=3
        )
    heading(axes, "Which tasks")
    axes.set_yticks(range(len(second)), list(second))
    axes.set_ylim(len(second) - 0.4, -0.6)
    axis_scale(axes, "x", Label("seeds that solve it", percent=True), np.array([]), log=False)
    axes.set_xlim(-0.03, 1.03)
    axes.grid(axis="y", visible=False)
