"""The repeated-data law: what an augmented copy is worth, in fresh puzzles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import FixedLocator

from trm.analysis.figures.base import (
    GREY,
    MARKERS,
    TWO,
    Drawing,
    axis_scale,
    canvas,
    colours,
    finish,
    fit_of,
    heading,
    legend,
    nice,
    ordered,
    strip_of,
    table_of,
)
from trm.analysis.figures.law import caption
from trm.analysis.figures.marks import seeds_and_means
from trm.analysis.labels import Label, label
from trm.analysis.sentences.special import repeated_sentence
from trm.analysis.specs import RepeatedFigure
from trm.analysis.stats.intervals import pooled_log_intervals
from trm.analysis.tables import Table, plain
from trm.analysis.tables.store import merge
from trm.analysis.words import interval, number, share, value_name


def draw(spec: RepeatedFigure, tables: list[Table], fits: list[dict[str, Any]]) -> Drawing:
    """Left: error against effective data, all experiments on one curve. Right: effective data against copies."""
    table = merge([table_of(tables, name) for name in spec.sources])
    rows = plain(table.select(spec.where, [spec.x, spec.second]))
    group = fit_of(fits, spec.fits("")[0])["groups"][0]
    levels = ordered(rows[spec.x])
    shades = colours(levels)
    figure, axes = canvas(TWO, 3.0, 1, 2, strip=strip_of(len(levels), 6, title=True))
    form = group.get("forms", {}).get("repeated_data")
    left, right = axes[0]
    x = effective(rows[spec.x], rows[spec.second], form)
    y = np.where(rows["error"] > 0, rows["error"], 0.5 / rows["puzzles"])
    left_out = rows["run"].isin({item["run"] for item in group["exclusions"]}).to_numpy()
    points = np.array([f"{u}:{r}" for u, r in zip(rows[spec.x], rows[spec.second])])
    means = pooled_log_intervals(y, points, most=1.0)
    for index, level in enumerate(levels):
        here = (rows[spec.x] == level).to_numpy()
        marker = MARKERS[index % len(MARKERS)]
        seeds_and_means(left, x, y, points, means, left_out, here, shades[level], marker, shift=1.03)
    if form:
        values = form["parameters"]
        line = np.geomspace(x.min(), 4 * x.max(), 100)
        law = np.minimum(values["E"] + values["A"] * line ** -values["a"], 1.0)
        inside = line <= x.max()
        left.plot(line[inside], law[inside], color="black", linewidth=1.2)
        left.plot(line[~inside], law[~inside], color="black", linewidth=1, linestyle=(0, (4, 2)))
        _worth(right, rows[spec.second].to_numpy(float), form)
    axis_scale(left, "x", Label("effective puzzles D′", log=True), x)
    left.xaxis.set_major_locator(
        FixedLocator(nice(*left.get_xlim()))
    )  # the places come from the fit: not round
    left.set_yscale("log")
    left.set_ylim(y.min() / 1.6, min(1.15, y.max() * 1.5))
    axis_scale(left, "y", label("error"), y)
    heading(left, spec.title or "Unique and repeated data, one law", _equation(form))
    handles = [
        left.plot([], [], MARKERS[i % len(MARKERS)], color=shades[v], label=value_name(v))[0]
        for i, v in enumerate(levels)
    ]
    legend(figure, handles, 6, label(spec.x).name)
    if not form:
        right.set_axis_off()
    return finish(
        figure,
        spec,
        [table_of(tables, name) for name in spec.sources],
        rows,
        title=spec.title or "Unique and repeated data, one law",
        caption=(
            "Left: every grid point of the experiments at its effective number of puzzles "
            "D′ = U + U R*(1 − exp(−R/R*)), U unique puzzles with R augmented copies each (Muennighoff et al. 2023). "
            "Right: how many fresh puzzles the copies of one are worth; ribbon: the interval of R*. "
            + caption({"groups": [_as_law(group)]})
        ),
        sentence=repeated_sentence(group),
        numbers={"parameters": form["parameters"], "intervals": form.get("intervals")} if form else {},
    )


def effective(unique: pd.Series, repeats: pd.Series, form: dict[str, Any] | None) -> np.ndarray:
    """D' of every row; without a fit, every copy counted as a fresh puzzle."""
    u, r = unique.to_numpy(float), repeats.to_numpy(float)
    if form is None:
        return u * (1 + r)
    worth = form["parameters"]["R*"]
    return u * (1 + worth * (1 - np.exp(-r / worth)))


def _worth(axes: Any, repeats: np.ndarray, form: dict[str, Any]) -> None:
    """Fresh puzzles that R copies of one are worth."""
    most = max(1.0, repeats.max())
    line = np.linspace(0, most, 200)

    def curve(worth: float) -> np.ndarray:
        return worth * (1 - np.exp(-line / worth))

    bounds = (form.get("intervals") or {}).get("R*")
    axes.plot(line, line, color=GREY, linewidth=0.9, linestyle=":")
    axes.annotate("a copy worth a fresh puzzle", (most * 0.5, most * 0.5), fontsize=6, color=GREY, ha="right")
    if bounds:
        axes.fill_between(line, curve(bounds[0]), curve(bounds[1]), color="#0072B2", alpha=0.14, linewidth=0)
    axes.plot(line, curve(form["parameters"]["R*"]), color="#0072B2")
    axes.set_ylim(
        0, 1.25 * max(curve(form["parameters"]["R*"]).max(), curve(bounds[1]).max() if bounds else 0)
    )
    axis_scale(axes, "x", Label("augmented copies R of each puzzle"), np.array([]), log=False)
    axis_scale(axes, "y", Label("worth in fresh puzzles"), np.array([]), log=False)
    heading(axes, "What copies are worth")


def _equation(form: dict[str, Any] | None) -> str:
    if form is None:
        return "no fit"
    values, bounds = form["parameters"], form.get("intervals") or {}
    parts = [f"{key} = {number(values[key], 2)}{interval(bounds.get(key))}" for key in ("a", "R*")]
    floor = f"E = {share(values['E'])}{interval(bounds.get('E'), 2, 100)} %"
    return "$e = E + A\\,D_{eff}^{-a}$,  " + ",  ".join(parts) + "\n" + floor


def _as_law(group: dict[str, Any]) -> dict[str, Any]:
    """The group in the shape that `caption` reads (a group without a fit has neither forms nor notes to add)."""
    return {"notes": [], **group}
