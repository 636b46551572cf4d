"""Runs that ought to be the same: curves overlaid, and how far each lies from the first grid point's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from trm.analysis.figures.base import (
    TWO,
    Drawing,
    axis_scale,
    canvas,
    colours,
    finish,
    heading,
    legend,
    ordered,
    strip_of,
    table_of,
)
from trm.analysis.figures.curves import COLUMNS
from trm.analysis.labels import Label
from trm.analysis.sentences.agreement import Agreement, agreement_answer, agreement_sentence
from trm.analysis.specs import AgreementFigure
from trm.analysis.tables import Table
from trm.analysis.words import point_name
from trm.errors import UserError

DASHES = ("-", "--", ":", "-.")
LEAST = 1e-9
"""Where a difference of exactly nothing is drawn."""


def draw(spec: AgreementFigure, tables: list[Table], fits: list[dict[str, Any]]) -> Drawing:
    """Above: the curves. Below: their relative difference from the first grid point's, seed by seed."""
    table = table_of(tables, tables[0].experiment)
    rows = table.select(spec.where)
    names = ordered(rows["label"])
    lost = [column for column in spec.metrics if column not in table.curves]
    if lost:
        raise UserError(f"no history of {table.experiment} has a column {lost[0]}")
    if len(names) < 2:
        raise UserError(f"{table.experiment} has one grid point: there is nothing for it to agree with")
    shades = colours(names)
    strip = strip_of(len(names), 3)
    figure, axes = canvas(TWO, 4.2, 2, len(spec.metrics), strip=strip, sharex="col", height_ratios=[3, 2])
    found: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in names[1:]}
    for place, column in enumerate(spec.metrics):
        text = COLUMNS.get(column, Label(column.replace("/", " ").replace("_", " ")))
        for name, item in _panels(axes[0, place], axes[1, place], table, rows, column, text, shades).items():
            found[name][text.name] = item
    axes[0, 0].set_xlabel("")
    title = spec.title or "The same run, computed in other ways"
    heading(axes[0, 0], title)
    handles = [
        axes[0, 0].plot([], [], color=shades[name], linestyle=DASHES[i % 4], label=point_name(name))[0]
        for i, name in enumerate(names)
    ]
    legend(figure, handles, 3)
    parts = [_measured(rows, name, found.get(name, {})) for name in names]
    return finish(
        figure,
        spec,
        [table],
        rows,
        title=title,
        caption=(
            f"Above: every seed's curve. Below: its relative difference from the same seed's curve of "
            f"{point_name(names[0])}; a difference of exactly nothing is drawn at {LEAST:g}. Training amplifies "
            "rounding from step to step (the optimiser's steps hardly depend on a gradient's size, so they follow the "
            "sign even of one near nothing): "
            "agreement at the start is what equal computations show; later only averages can agree."
        ),
        sentence=agreement_sentence(parts),
        answer=agreement_answer(parts),
        numbers={"agreement": [part._asdict() for part in parts]},
    )


def _panels(
    above: Axes,
    below: Axes,
    table: Table,
    rows: pd.DataFrame,
    column: str,
    text: Label,
    shades: dict[Any, str],
) -> dict[str, tuple[float, float]]:
    """Draw one metric; returns each point's relative difference at the start, and the largest one."""
    histories = {run: part.set_index("step")[column].dropna() for run, part in table.curves.groupby("run")}
    first, *others = shades
    lines = {
        name: {int(run["seed"]): histories[run["run"]] for _, run in part.iterrows()}
        for name, part in rows.groupby("label", sort=False)
    }
    found: dict[str, tuple[float, float]] = {}
    seen = []
    for index, name in enumerate(shades):
        for line in lines[name].values():
            style = {"linewidth": 2.2, "alpha": 0.35} if name == first else {"linewidth": 0.8, "alpha": 0.9}
            above.plot(line.index, line, color=shades[name], linestyle=DASHES[index % 4], **style)
            seen.append(line.to_numpy(float))
    for name in others:
        start, whole = [], []
        for seed in lines[name].keys() & lines[first].keys():
            reference, line = lines[first][seed], lines[name][seed]
            steps = reference.index.intersection(line.index)
            if not len(steps):
                continue
            apart = (line[steps] - reference[steps]).abs().to_numpy(float)
            away = apart / np.maximum(reference[steps].abs().to_numpy(float), LEAST)
            below.plot(steps, np.maximum(away, LEAST), color=shades[name], linewidth=0.8)
            start.append(float(away[0]))
            whole.append(float(away.max()))
        if whole:
            found[name] = (max(start), max(whole))
    axis_scale(above, "y", text, np.concatenate(seen))
    axis_scale(below, "x", Label("training step"), np.array([]), log=False)
    below.set_yscale("log")
    below.set_ylabel("Relative difference")
    return found


def _measured(rows: pd.DataFrame, name: str, away: dict[str, tuple[float, float]]) -> Agreement:
    part = rows[rows["label"] == name]

    def mean(column: str) -> float | None:
        values = pd.to_numeric(part[column], errors="coerce").dropna()
        return float(values.mean()) if len(values) else None

    return Agreement(
        point_name(name),
        {metric: item[0] for metric, item in away.items()},
        {metric: item[1] for metric, item in away.items()},
        mean("exact_accuracy"),
        mean("rows_per_second"),
        mean("peak_memory_bytes"),
    )
