"""Learning curves: every seed faint, the mean strong, and how far training runs ahead of unseen puzzles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from trm.analysis.figures.base import (
    GREY,
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
from trm.analysis.sentences.comparisons import curves_sentence, gap_sentence
from trm.analysis.specs import CurvesFigure
from trm.analysis.tables import Table
from trm.analysis.words import percent, point_name
from trm.errors import UserError

AXES = {
    "step": Label("training step"),
    "rows": Label("offered training puzzles"),
    "seconds": Label("training time", "s"),
    "flops": Label("training compute", "FLOPs"),
}
COLUMNS = {
    "eval/exact_accuracy": Label("validation exact accuracy", percent=True),
    "eval/accuracy": Label("validation cell accuracy", percent=True),
    "eval/blank_accuracy": Label("validation accuracy on blank cells", percent=True),
    "eval/cross_entropy": Label("validation cross entropy", "nats per cell"),
    "train/exact_accuracy": Label("training exact accuracy", percent=True),
    "train/accuracy": Label("training cell accuracy", percent=True),
    "train/loss": Label("training loss", log=True),
    "train/lm_loss": Label("training cross entropy", "nats per cell", log=True),
    "train/grad_norm": Label("gradient norm", log=True),
    "train/steps": Label("supervision steps of a puzzle", "steps"),
    "train/lr": Label("learning rate"),
    "perf/rows_per_second": Label("throughput", "puzzles/s"),
}
MOST = 12
"""Most grid points told apart by colour."""


def draw(spec: CurvesFigure, tables: list[Table], fits: list[dict[str, Any]]) -> Drawing:
    """One panel for each history column, and one for the train-test gap."""
    table = table_of(tables, tables[0].experiment)
    rows = table.select(spec.where, [spec.hue] if spec.hue else [])
    key, values, names = _groups(spec, table, rows)
    spoken = {
        value: names[value] if key == "label" else f"{label(key).name} {names[value]}" for value in values
    }
    shades = colours(values)
    columns = [spec.metric, *spec.metrics]
    for column in columns:
        if column not in table.curves:
            raise UserError(f"no history of {table.experiment} has a column {column}")
    gap = spec.gap and rows["train_exact_accuracy"].notna().any()
    panels = len(columns) + gap
    wide = 2 if panels == 4 else min(3, panels)
    deep = -(-panels // wide)
    across = 3 if wide == 1 else 6
    across = 2 if key == "label" else across
    strip = strip_of(len(values), across, title=key != "label") if len(values) > 1 else 0.0
    figure, axes = canvas(TWO if wide > 1 else 0.62 * TWO, 2.5 * deep, deep, wide, strip=strip)
    ends: dict[str, dict[Any, float]] = {}
    for axis, column in zip(axes.flat, columns):
        ends[column] = _panel(axis, table, rows, key, values, shades, column, spec)
    flat = list(axes.flat)
    if gap:
        _gap(flat[len(columns)], rows, key, values, shades)
    for axis in flat[panels:]:
        axis.set_axis_off()
    handles = [flat[0].plot([], [], color=shades[value], label=names[value])[0] for value in values]
    if len(values) > 1:
        legend(figure, handles, across, legend_title(key, rows))
    text = COLUMNS.get(spec.metric, Label(spec.metric)).name
    title = spec.title or text[:1].upper() + text[1:] + (
        "" if text.startswith("training") else " in training"
    )
    heading(flat[0], title)
    sentence = curves_sentence(ends[spec.metric], spoken, text, COLUMNS.get(spec.metric, Label("")).percent)
    if spec.metric == "eval/blank_accuracy":
        sentence += _beside_guesses(flat[0], table, rows)
    if spec.metric == "eval/exact_accuracy":
        sentence += _beside_filling(flat[0], table, rows)
    if gap:
        sentence += " " + gap_sentence({spoken[value]: _gaps(rows, key, value) for value in values})
    caption = (
        "Thin lines: one seed each. Thick lines: mean over the seeds at the same place. Validation puzzles are "
        "disjoint, up to symmetry, from training and test puzzles."
    )
    if gap:
        caption += (
            " Last panel: exact accuracy of the finished runs on puzzles trained on and on test puzzles."
        )
    return finish(
        figure,
        spec,
        [table],
        rows,
        title=title,
        caption=caption,
        sentence=sentence,
        numbers={"final": {names[k]: v for k, v in ends[spec.metric].items()}},
    )


def _groups(spec: CurvesFigure, table: Table, rows: pd.DataFrame) -> tuple[str, list[Any], dict[Any, str]]:
    """The column that colours, its values, their names. Many grid points: only the first coordinate
    colours."""
    if spec.hue:
        values = ordered(rows[spec.hue])
        return spec.hue, values, {value: hue_name(spec.hue, value) for value in values}
    coordinates = [name for name in table.info.get("coordinates", []) if rows[name].nunique(dropna=False) > 1]
    if len(coordinates) == 1 and rows[coordinates[0]].astype(str).str.startswith("[").any():
        coordinates = []  # stages of a curriculum: the point's own words say more
    if len(coordinates) == 1 or (coordinates and rows["label"].nunique() > MOST):
        column = coordinates[0]
        values = ordered(rows[column])
        return column, values, {value: hue_name(column, value) for value in values}
    values = ordered(rows["label"])
    return "label", values, {value: point_name(value) for value in values}


def _panel(
    axes: Axes,
    table: Table,
    rows: pd.DataFrame,
    key: str,
    values: list[Any],
    shades: dict[Any, str],
    column: str,
    spec: CurvesFigure,
) -> dict[Any, float]:
    """Curves of one history column; returns the mean last value of each group."""
    text = COLUMNS.get(column, Label(column.replace("/", " ").replace("_", " ")))
    histories = dict(iter(table.curves.groupby("run", sort=False)))
    ends: dict[Any, float] = {}
    seen: list[np.ndarray] = []
    ran: list[np.ndarray] = []
    for value in values:
        lines = []
        for _, run in rows[is_value(rows[key], value)].iterrows():
            history = histories.get(run["run"])
            if history is None:
                continue
            place, level = _line(history, column, spec.against)
            if len(place):
                lines.append((place, level))
        if not lines:
            continue
        for place, level in lines:
            axes.plot(place, level, color=shades[value], alpha=0.3, linewidth=0.6)
            seen.append(level)
            ran.append(place)
        place, level = _mean(lines)
        axes.plot(place, level, color=shades[value], linewidth=1.5)
        ends[value] = float(np.mean([level[-1] for _, level in lines]))
    if not seen:
        raise UserError(f"no run of {table.experiment} measured {column}: the figure would be empty")
    axis_scale(axes, "x", AXES[spec.against], np.concatenate(ran), log=False)
    if spec.against == "step":
        axes.xaxis.set_major_locator(_few())
    axis_scale(axes, "y", text, np.concatenate(seen))
    return ends


def _beside_guesses(axes: Axes, table: Table, rows: pd.DataFrame) -> str:
    """Levels of blind guessing in the panel, and a sentence that holds the held-out accuracy against them (95 %
    interval over puzzles, normal approximation; the mean over runs)."""
    known = [
        guess for guess in table.info.get("guess", {}).values() if guess and guess.get("rules") is not None
    ]
    if not known:
        return ""
    levels = {key: float(np.mean([guess[key] for guess in known])) for key in ("uniform", "rules")}
    for key, name, dashes in (
        ("uniform", "uniform guess", ":"),
        ("rules", "guess among the rules' candidates", "--"),
    ):
        axes.axhline(levels[key], color=GREY, linestyle=dashes, linewidth=0.8)
        axes.annotate(
            name,
            (0.02, levels[key]),
            xycoords=("axes fraction", "data"),
            fontsize=5.5,
            color=GREY,
            va="bottom",
        )
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.9 * levels["uniform"]), max(high, 1.1 * levels["rules"]))
    mean, error = float(rows["blank_accuracy"].mean()), rows["blank_error"].astype(float).mean()
    interval = (
        f" [{100 * (mean - 1.96 * error):.1f}, {100 * (mean + 1.96 * error):.1f}]" if error == error else ""
    )
    return (
        f" On blank cells of held-out puzzles {100 * mean:.1f} %{interval} are right; a uniform guess gets "
        f"{100 * levels['uniform']:.1f} %, a guess among the candidates that row, column and box leave "
        f"{100 * levels['rules']:.1f} %."
    )


def _beside_filling(axes: Axes, table: Table, rows: pd.DataFrame) -> str:
    """Mazes: the exact accuracy of filling dead ends as a level in the panel, and a sentence beside it."""
    known = [guess["exact"] for guess in table.info.get("guess", {}).values() if guess and "exact" in guess]
    if not known:
        return ""
    level = float(np.mean(known))
    axes.axhline(level, color=GREY, linestyle="--", linewidth=0.8)
    axes.annotate(
        "filling dead ends",
        (0.98, level),  # curves begin low and end high: the right end of the line is free
        xycoords=("axes fraction", "data"),
        fontsize=5.5,
        color=GREY,
        ha="right",
        va="bottom",
    )
    best = rows.groupby("point")["exact_accuracy"].mean().max()
    return (
        f" Without learning, filling dead ends solves {percent(level)} of the test mazes; the model solves "
        f"{percent(best)}" + (" at the best point." if rows["point"].nunique() > 1 else ".")
    )


def _few() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(5)


def _line(history: pd.DataFrame, column: str, against: str) -> tuple[np.ndarray, np.ndarray]:
    """Places and values of one run's column where it was measured."""
    known = history[history[column].notna()]
    return known[against].to_numpy(float), known[column].to_numpy(float)


def _mean(lines: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean of several curves on the first one's places, over the range that all of them cover."""
    low, high = max(place[0] for place, _ in lines), min(place[-1] for place, _ in lines)
    grid = lines[0][0]
    grid = grid[(grid >= low) & (grid <= high)]
    if not len(grid):
        return lines[0]
    return grid, np.mean([np.interp(grid, place, level) for place, level in lines], axis=0)


def _gaps(rows: pd.DataFrame, key: str, value: Any) -> tuple[float, float]:
    part = rows[is_value(rows[key], value)]
    return float(part["train_exact_accuracy"].mean()), float(part["exact_accuracy"].mean())


def _gap(axes: Axes, rows: pd.DataFrame, key: str, values: list[Any], shades: dict[Any, str]) -> None:
    """Training (hollow) and test (full) accuracy of each group, joined by a line whose length is the gap."""
    for place, value in enumerate(values):
        part = rows[is_value(rows[key], value)]
        trained, tested = _gaps(rows, key, value)
        axes.plot([tested, trained], [place, place], color=shades[value], linewidth=1.2, zorder=2)
        axes.plot(
            part["exact_accuracy"], [place] * len(part), "o", color=shades[value], alpha=0.35, markersize=2.6
        )
        axes.plot(tested, place, "o", color=shades[value], zorder=3)
        axes.plot(trained, place, "o", color=shades[value], markerfacecolor="white", zorder=3)
    heading(axes, "Trained on and unseen")
    axes.set_yticks([])
    axes.set_ylim(len(values) - 0.4, -0.6)
    axis_scale(axes, "x", Label("exact accuracy: test ●  training ○", percent=True), np.array([]), log=False)
    axes.grid(axis="y", visible=False)
    axes.axvline(1, color=GREY, linewidth=0.6)
