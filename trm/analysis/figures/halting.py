"""When the model believes it is done: the first supervision step with a positive halt logit."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from trm.analysis.figures.base import (
    TWO,
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
)
from trm.analysis.labels import Label, label
from trm.analysis.sentences.special import halting_sentence
from trm.analysis.specs import HaltingFigure
from trm.analysis.stats.intervals import mean
from trm.analysis.tables import Table
from trm.analysis.words import point_name, value_name
from trm.errors import UserError

STYLES = ("-", (0, (4, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
"""Lines that lie on each other are told apart by their dashes."""


def draw(spec: HaltingFigure, tables: list[Table], fits: list[dict[str, Any]]) -> Drawing:
    """Left: share of test puzzles by step. Right: cumulative share, with the exact accuracy as a mark at its end."""
    table = table_of(tables, tables[0].experiment)
    rows = table.select(spec.where, [spec.hue] if spec.hue else [])
    known = table.info.get("halting", {})
    rows = rows[[bool(known.get(run)) for run in rows["run"]]]
    if not len(rows):
        raise UserError(f"no evaluation of {table.experiment} recorded when puzzles halt")
    key = spec.hue or _varied(table, rows)
    values = ordered(rows[key])
    shades = colours(values)
    strip = (
        strip_of(len(values), 6 if key != "label" else 2, title=key != "label") if len(values) > 1 else 0.0
    )
    figure, axes = canvas(TWO, 2.6, 1, 2, strip=strip)
    numbers: dict[str, dict[str, float]] = {}
    for index, value in enumerate(values):
        part = rows[is_value(rows[key], value)]
        steps, share = _mean([known[run] for run in part["run"]])
        style = {"color": shades[value], "linestyle": STYLES[index % len(STYLES)]}
        axes[0, 0].plot(steps, share, marker="o", markersize=2.5, **style)
        total = np.cumsum(share)
        axes[0, 1].plot(steps, total, drawstyle="steps-post", **style)
        axes[0, 1].plot(
            steps[-1], part["exact_accuracy"].mean(), "D", color=shades[value], clip_on=False, zorder=5
        )
        means = [_steps(known[run]) for run in part["run"]]
        found = mean(means)
        name = point_name(value) if key == "label" else f"{label(key).name} {value_name(value, key)}"
        numbers[name] = {
            "mean_steps": found.value,
            "low": found.bounds[0] if found.bounds else float("nan"),
            "high": found.bounds[1] if found.bounds else float("nan"),
            "halted": float(total[-1]),
            "most": float(steps[-1]),
            "exact_accuracy": float(part["exact_accuracy"].mean()),
        }
    for axis, text in (
        (axes[0, 0], "Puzzles halting at this step"),
        (axes[0, 1], "Puzzles halted by this step"),
    ):
        axis_scale(axis, "x", Label("supervision step"), np.array([]), log=False)
        axis_scale(axis, "y", Label(text, percent=True), np.array([]), log=False)
        axis.set_ylim(bottom=0)
        axis.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 4, 8, 10]))
    axes[0, 1].set_ylim(0, 1.02)
    title = spec.title or "When the model stops"
    heading(axes[0, 0], title)
    heading(axes[0, 1], "◆ exact accuracy at the last step".replace("◆", "Diamonds:"))
    if len(values) > 1:
        marks = [
            axes[0, 0].plot(
                [], [], color=shades[v], linestyle=STYLES[i % len(STYLES)], label=hue_name(key, v)
            )[0]
            for i, v in enumerate(values)
        ]
        legend(figure, marks, 6 if key != "label" else 2, legend_title(key, rows))
    return finish(
        figure,
        spec,
        [table],
        rows,
        title=title,
        caption=(
            "Share of test puzzles whose halt logit first becomes positive at a supervision step, mean over seeds; "
            "puzzles that never halt are counted at the last step in the mean number of steps, but not in the shares."
        ),
        sentence=halting_sentence(numbers),
        numbers={"halting": numbers},
    )


def _varied(table: Table, rows: Any) -> str:
    """The one coordinate that varies, else the point's label."""
    varied = [name for name in table.info.get("coordinates", []) if rows[name].nunique(dropna=False) > 1]
    return varied[0] if len(varied) == 1 else "label"


def _mean(halting: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean share by step over runs; runs with fewer steps count zero beyond theirs."""
    most = max(max(item["steps"]) for item in halting)
    shares = np.zeros((len(halting), most))
    for row, item in zip(shares, halting):
        row[np.array(item["steps"], int) - 1] = item["share"]
    return np.arange(1, most + 1), shares.mean(axis=0)


def _steps(item: dict[str, Any]) -> float:
    """Mean steps of a run that stops at the first positive halt logit."""
    steps, share = np.array(item["steps"], float), np.array(item["share"], float)
    return float((steps * share).sum() + max(0.0, 1 - share.sum()) * steps.max())
