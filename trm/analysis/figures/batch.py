"""Batch size: steps, puzzles and time to the targets, the critical batch, the gradient noise scale."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from trm.analysis.figures.base import (
    GREY,
    MARKERS,
    OKABE_ITO,
    Drawing,
    axis_scale,
    canvas,
    finish,
    fit_of,
    heading,
    hue_name,
    is_value,
    legend,
    ordered,
    strip_of,
    table_of,
)
from trm.analysis.labels import Label, label
from trm.analysis.sentences.special import batch_sentence
from trm.analysis.specs import BatchFigure
from trm.analysis.stats.batch import Cost, costs, logged_noise_scale, noise_scale
from trm.analysis.stats.intervals import Mean
from trm.analysis.tables import Table, implied_hue
from trm.analysis.words import percent, place


def draw(spec: BatchFigure, tables: list[Table], fits: list[dict[str, Any]]) -> Drawing:
    """Four panels: steps, puzzles, FLOPs to the targets, and throughput with the noise scale's place."""
    table = table_of(tables, tables[0].experiment)
    rows = table.select(spec.where, [spec.x])
    wanted = [fit_of(fits, item) for item in spec.fits(table.experiment)]
    hue = implied_hue(table, rows, [spec.x])
    settings = ordered(rows[hue]) if hue else [None]
    across = 2 if hue else 4
    entries = len(spec.targets) + (len(settings) if hue else 0)
    figure, axes = canvas(7.0, 5.0, 2, 2, strip=strip_of(entries, across))
    batches = np.sort(rows[spec.x].unique().astype(float))
    handles: list[Any] = []
    known: dict[Any, dict[float, list[Cost]]] = {value: {} for value in settings}
    groups: dict[Any, dict[float, Any]] = {value: {} for value in settings}
    for index, (target, fit) in enumerate(zip(spec.targets, wanted)):
        for number, value in enumerate(settings):
            part = rows[is_value(rows[hue], value)] if hue else rows
            found = costs(part, table.curves, target, spec.x)
            group = next(item for item in fit["groups"] if not hue or item["hue"] == value)
            known[value][target], groups[value][target] = found, group
            for axis, field in zip(axes.flat, ("steps", "rows", "flops")):
                _marks(axis, found, field, OKABE_ITO[index], MARKERS[number])
            _law(axes[0, 0], axes[0, 1], group, part[spec.x].to_numpy(float), OKABE_ITO[index])
        name = f"to {percent(target, 0)} validation accuracy"
        handles += axes[0, 0].plot([], [], color=OKABE_ITO[index], label=name)
    for number, value in enumerate(settings if hue else []):
        name = hue_name(hue or "", value)
        handles += axes[0, 0].plot([], [], MARKERS[number], color=GREY, label=name)
    legend(figure, handles, across)
    _throughput(axes[1, 1], rows, spec)
    scales = _noise(rows, table, spec)
    for value, _ in scales:
        for axis in (axes[0, 0], axes[0, 1]):
            axis.axvline(value, color=GREY, linewidth=0.8, linestyle=":", zorder=1)
    names = ("Steps (log)", "Puzzles offered (log)", "Training compute (FLOPs, log)")
    titles = ("Steps to the target", "Puzzles to the target", "Compute to the target", "Throughput")
    for axis, text in zip(axes.flat, titles):
        heading(axis, text)
        axis_scale(axis, "x", label(spec.x), batches, log=True)
    for axis, text, field in zip(axes.flat, names, ("steps", "rows", "flops")):
        values = np.array(
            [
                getattr(cost, field).value
                for found in known.values()
                for item in found.values()
                for cost in item
            ]
        )
        if np.isfinite(values).any():
            axis_scale(axis, "y", Label(text.replace(" (log)", "").replace(", log", ""), log=True), values)
        else:
            axis.text(0.5, 0.5, "no run reached a target", transform=axis.transAxes, ha="center", color=GREY)
    parts = []
    for value in settings:
        text = batch_sentence(groups[value], known[value], scales if value == settings[-1] else [])
        parts.append(f"With {place(hue, value)}: {text}" if hue else text)
    first = settings[0]
    return finish(
        figure,
        spec,
        [table],
        rows,
        title=spec.title or "Batch size",
        caption=(
            "Mean over the seeds that reach the target, with Student 95 % interval; hollow: not every seed does. "
            "Lines: S = Smin (1 + B*/B) fitted to the steps, and the puzzles it implies (arXiv 1812.06162). Dotted: "
            "gradient noise scale."
        ),
        sentence=" ".join(parts),
        answer=batch_sentence({t: groups[first][t] for t in spec.targets[:1]}, known[first], []),
        numbers={"noise_scale": scales},
    )


def _marks(axes: Axes, found: list[Cost], field: str, colour: str, marker: str) -> None:
    for cost in found:
        value: Mean = getattr(cost, field)
        if not value.n:
            continue
        if value.bounds:
            low, high = max(value.bounds[0], 0.2 * value.value), value.bounds[1]
            axes.plot([cost.batch, cost.batch], [low, high], color=colour, linewidth=1)
        face = colour if cost.reached == cost.runs else "white"
        axes.plot(cost.batch, value.value, marker, color=colour, markerfacecolor=face)


def _law(steps: Axes, rows: Axes, group: dict[str, Any], batches: np.ndarray, colour: str) -> None:
    """The fitted tradeoff in both forms."""
    if "forms" not in group:
        return
    values = group["forms"]["critical_batch"]["parameters"]
    places = np.geomspace(batches.min(), batches.max(), 60)
    count = values["Smin"] * (1 + values["B*"] / places)
    steps.plot(places, count, color=colour, linewidth=1.2)
    rows.plot(places, count * places, color=colour, linewidth=1.2)


def _throughput(axes: Axes, rows: Any, spec: BatchFigure) -> None:
    means = rows.groupby(spec.x, sort=True)["rows_per_second"].mean()
    axes.plot(rows[spec.x], rows["rows_per_second"], "o", color=OKABE_ITO[2], alpha=0.35, markersize=2.6)
    axes.plot(means.index, means, marker="o", color=OKABE_ITO[2])
    axis_scale(axes, "y", label("rows_per_second"), rows["rows_per_second"].to_numpy(float), log=True)


def _noise(rows: Any, table: Table, spec: BatchFigure) -> list[tuple[float, str]]:
    """Noise scales and how each was measured: logged in training if it was, else from gradient norms."""
    logged = logged_noise_scale(rows, table.curves, spec.x)
    if logged:
        centre = float(np.exp(np.mean([np.log(item.value) for _, item in logged])))
        return [(centre, "measured between micro-batches in the last half of training")]
    estimates = noise_scale(rows, table.curves, spec.x)
    if not estimates:
        return []
    part, value = estimates[-1]
    return [(value, f"estimated from gradient norms at {100 * part:.0f} % of training: its order only")]
