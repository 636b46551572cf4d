"""Metric over two variables; optionally the best x for each y and its power law."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from trm.analysis.figures.base import (
    ONE,
    Drawing,
    axis_scale,
    canvas,
    finish,
    fit_of,
    heading,
    is_value,
    ordered,
    table_of,
    with_hue,
    wrap,
)
from trm.analysis.labels import label
from trm.analysis.sentences.comparisons import heatmap_sentence
from trm.analysis.sentences.special import optimum_sentence
from trm.analysis.specs import HeatmapFigure
from trm.analysis.stats.intervals import mean
from trm.analysis.tables import Table
from trm.analysis.words import number, place, value_name
from trm.errors import UserError


def draw(spec: HeatmapFigure, tables: list[Table], fits: list[dict[str, Any]]) -> Drawing:
    """One map for each hue value, all on one colour scale; the optimum's law in a panel beside."""
    table = table_of(tables, tables[0].experiment)
    spec = with_hue(spec, table, table.select(spec.where, [spec.x]), [spec.x, spec.y])
    rows = table.select(spec.where, [spec.x, spec.y, spec.z, *([spec.hue] if spec.hue else [])])
    rows = rows[pd.to_numeric(rows[spec.z], errors="coerce").notna()]
    if not len(rows):
        raise UserError(f"{table.experiment} has no measurement of {spec.z}: the map would be empty")
    hues = ordered(rows[spec.hue]) if spec.hue else [None]
    xs, ys = ordered(rows[spec.x]), ordered(rows[spec.y])
    found = spec.fits(table.experiment)
    fit = fit_of(fits, found[0]) if found else None
    panels = len(hues) + (fit is not None)
    width = max(ONE, 1.35 + 0.62 * len(xs)) * len(hues) + (ONE if fit else 0) + 0.5
    figure, axes = canvas(width, max(2.4, 1.1 + 0.5 * len(ys)), 1, panels)
    maps = [_cells(rows[is_value(rows[spec.hue], hue)] if spec.hue else rows, spec, xs, ys) for hue in hues]
    every = np.concatenate([cells[0].ravel() for cells in maps])
    norm = Normalize(np.nanmin(every), np.nanmax(every))
    for axis, hue, cells in zip(axes[0], hues, maps):
        image = _map(axis, cells, spec, xs, ys, norm)
        if spec.hue:
            heading(axis, place(spec.hue, hue))
    bar = figure.colorbar(image, ax=list(axes[0, : len(hues)]), shrink=0.9, pad=0.02)
    bar.outline.set_visible(False)
    _bar(bar, spec)
    title = (
        spec.title
        or f"{label(spec.z).name.split(' on ')[0].capitalize()} by {_short(spec.x)} and {_short(spec.y)}"
    )
    if not spec.hue:
        heading(axes[0, 0], title)
    sentence = _sentence(rows, spec)
    caption = (
        "Each cell: mean over the seeds, with half the width of its Student 95 % interval where there are several. "
        "Colour: viridis, one scale for all maps."
    )
    if fit:
        _optimum(axes[0, -1], fit["groups"][0], spec)
        sentence += " " + optimum_sentence(fit["groups"][0], spec.x, spec.y)
        caption += (
            " Right: vertex of a parabola in log-log through the best point and its neighbours, with bootstrap 95 % "
            "interval; hollow where the best point lies at the edge of the grid, which only bounds the optimum."
        )
    return finish(figure, spec, [table], rows, title=title, caption=caption, sentence=sentence, numbers={})


def _short(column: str) -> str:
    return label(column).name.split(" (")[0]


def _cells(
    rows: pd.DataFrame, spec: HeatmapFigure, xs: list[Any], ys: list[Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Means and half widths [y, x]; NaN where nothing was run."""
    centre, half = np.full((len(ys), len(xs)), np.nan), np.full((len(ys), len(xs)), np.nan)
    for i, y in enumerate(ys):
        for j, x in enumerate(xs):
            data = rows[is_value(rows[spec.x], x) & is_value(rows[spec.y], y)][spec.z]
            summary = mean(data)
            if summary.n:
                centre[i, j] = summary.value
                if summary.bounds:
                    half[i, j] = (summary.bounds[1] - summary.bounds[0]) / 2
    return centre, half


def _map(
    axes: Axes,
    cells: tuple[np.ndarray, np.ndarray],
    spec: HeatmapFigure,
    xs: list[Any],
    ys: list[Any],
    norm: Normalize,
) -> Any:
    centre, half = cells
    shades = matplotlib.colormaps["viridis"].with_extremes(bad="#f0f0f0")
    image = axes.imshow(np.ma.masked_invalid(centre), norm=norm, cmap=shades, aspect="auto", origin="lower")
    scale = 100 if label(spec.z).percent else 1
    for (i, j), value in np.ndenumerate(centre):
        if not np.isfinite(value):
            continue
        dark = norm(value) < 0.6
        text = f"{100 * value:.1f}" if label(spec.z).percent else number(value, 3)
        axes.text(
            j,
            i + (0.12 if np.isfinite(half[i, j]) else 0),
            text,
            ha="center",
            va="center",
            color="white" if dark else "black",
            fontsize=7.5,
        )
        if np.isfinite(half[i, j]):
            axes.text(
                j,
                i - 0.22,
                f"±{number(scale * half[i, j], 2)}",
                ha="center",
                va="center",
                color="white" if dark else "black",
                fontsize=5.5,
            )
    axes.set_xticks(range(len(xs)), [value_name(x, spec.x) for x in xs])
    axes.set_yticks(range(len(ys)), [value_name(y, spec.y) for y in ys])
    axes.set_xlabel(label(spec.x).axis)
    axes.set_ylabel(label(spec.y).axis)
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0)
    return image


def _bar(bar: Any, spec: HeatmapFigure) -> None:
    text = label(spec.z)
    bar.set_label(wrap(text.axis, 26))
    if text.percent:
        bar.formatter = lambda value, _: f"{100 * value:.3g}"
        bar.update_ticks()


def _sentence(rows: pd.DataFrame, spec: HeatmapFigure) -> str:
    summary = []
    for (x, y), part in rows.groupby([spec.x, spec.y], dropna=False):
        found = mean(part[spec.z])
        summary.append({"x": x, "y": y, "value": found.value, "bounds": found.bounds})
    ranked = sorted(summary, key=lambda item: item["value"])
    return heatmap_sentence(ranked[-1], ranked[0], spec.x, spec.y, spec.z)


def _optimum(axes: Axes, group: dict[str, Any], spec: HeatmapFigure) -> None:
    """The best x against y, log-log, with its power law."""
    heading(axes, f"Best {_short(spec.x)}")
    if "optima" not in group:
        axes.text(0.5, 0.5, "no optimum:\n" + group["error"], ha="center", va="center", fontsize=7)
        axes.set_axis_off()
        return
    optima = group["optima"]
    places = np.array([item["second"] for item in optima])
    best = np.array([item["x"] for item in optima])
    for item in optima:
        if item["interval"]:
            axes.plot([item["second"]] * 2, item["interval"], color="#0072B2", linewidth=1.1)
        face = "white" if item["edge"] else "#0072B2"
        axes.plot(item["second"], item["x"], "o", color="#0072B2", markerfacecolor=face)
    if "law" in group:
        line = np.geomspace(places.min(), places.max(), 30)
        values = group["law"]["parameters"]
        axes.plot(line, values["A"] * line ** values["a"], color="#D55E00")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axis_scale(axes, "x", label(spec.y), places)
    axis_scale(axes, "y", label(spec.x), best)
