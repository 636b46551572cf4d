"""Metric against one variable: seeds, means, intervals, the fitted law."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from trm.analysis.figures.base import (
    GREY,
    MARKERS,
    ONE,
    Drawing,
    axis_scale,
    canvas,
    colours,
    finish,
    fit_of,
    heading,
    hue_name,
    is_value,
    legend,
    legend_title,
    ordered,
    strip_of,
    table_of,
    with_hue,
    wrap,
)
from trm.analysis.labels import label
from trm.analysis.sentences.laws import equation, law_answer, law_sentence
from trm.analysis.specs import Figure, LawFigure
from trm.analysis.stats.intervals import pooled_log_intervals, pooled_spread, wilson
from trm.analysis.stats.pareto import frontier
from trm.analysis.tables import Table
from trm.analysis.tables.store import merge
from trm.analysis.words import count, listed, number
from trm.errors import UserError

CAPTION = (
    "Faint marks: one seed each. Strong marks: geometric mean with its 95 % interval from the seed spread "
    "pooled over the points (grey bars behind: binomial 95 % interval of the finite test set). "
)
CAPTION_FIT = (
    "Line and ribbon: fitted law and 95 % interval of a hierarchical bootstrap ({refits} refits, {failed} "
    "failed), solid inside the data, dashed beyond. Hollow marks are shown but not fitted."
)


def draw(spec: LawFigure, tables: list[Table], fits: list[dict[str, Any]]) -> Drawing:
    """The law figure of one experiment."""
    own = [table_of(tables, name) for name in spec.experiments(tables[0].experiment)]
    table = merge(own)
    found = spec.fits(table.experiment)
    fit = fit_of(fits, found[0]) if found else None
    spec = with_hue(spec, table, table.select(spec.where, [spec.x]), [spec.x])
    groups = len(ordered(table.select(spec.where, [spec.hue])[spec.hue])) if spec.hue else 0
    across = 1 if spec.hue == "series" else 3
    entries = groups + (spec.envelope and groups > 0)
    figure, axes = canvas(1.35 * ONE, 3.0, strip=strip_of(entries, across, title=bool(spec.hue)))
    rows = panel(axes[0, 0], spec, table, fit)
    if spec.hue:
        handles = axes[0, 0].get_legend_handles_labels()[0]
        legend(figure, handles, across, legend_title(spec.hue, rows))
    title = spec.title or title_of(spec)
    heading(axes[0, 0], title, subtitle(fit, spec))
    return finish(
        figure,
        spec,
        [table],
        rows,
        title=title,
        caption=caption(fit),
        sentence=law_sentence(fit, spec) if fit else plain_sentence(rows, spec),
        answer=law_answer(fit, spec) if fit else "",
        numbers={"fit": summary(fit)} if fit else {},
    )


def title_of(spec: LawFigure) -> str:
    """`Error against unique training puzzles`."""
    name = label(spec.y).name.split(" (")[0].split(" on ")[0]
    return f"{name[:1].upper()}{name[1:]} against {label(spec.x).name.split(' (')[0]}"


def subtitle(fit: dict[str, Any] | None, spec: LawFigure, width: int = 72) -> str:
    """The equation with its intervals in lines of about `width` characters, or what stands in its place."""
    if fit is None:
        return "no law fitted"
    groups = fit["groups"]
    if len(groups) > 1:
        return "fitted separately for each colour"
    if "error" in groups[0]:
        return wrap("no fit: " + groups[0]["error"], width)
    return equation(groups[0], spec.x, spec.y, width)


def caption(fit: dict[str, Any] | None) -> str:
    """The caption from what was done."""
    if fit is None:
        return CAPTION.strip()
    chosen = [group["forms"][group["chosen"]] for group in fit["groups"] if "forms" in group]
    refits = max((item.get("refits", 0) for item in chosen), default=0)
    failed = max((item.get("failed_share", 0.0) for item in chosen), default=0.0)
    text = CAPTION + CAPTION_FIT.format(refits=f"{refits:,}", failed=f"{100 * failed:.1f} %")
    excluded: dict[str, int] = {}
    for group in fit["groups"]:
        for item in group["exclusions"]:
            excluded[str(item["why"])] = excluded.get(str(item["why"]), 0) + 1
    if excluded:
        text += " Not fitted: " + "; ".join(f"{count(n, 'run')} ({why})" for why, n in excluded.items()) + "."
    notes = list(dict.fromkeys(note for group in fit["groups"] for note in group.get("notes", [])))
    if notes:
        text += " " + "; ".join(note[:1].upper() + note[1:] for note in notes) + "."
    spreads = [g for g in fit["groups"] if g.get("seed_spread") and g.get("binomial_spread")]
    if spreads:
        seeds = listed([f"{100 * g['seed_spread']:.0f} %" for g in spreads])
        tests = listed([f"{100 * g['binomial_spread']:.0f} %" for g in spreads])
        text += (
            f" Spread of the error between seeds {seeds}, binomial error of the test set {tests} (relative)."
        )
    return text


def summary(fit: dict[str, Any]) -> list[dict[str, Any]]:
    """The part of a fit that sentences need: no curves."""
    short = []
    for group in fit["groups"]:
        item = {key: value for key, value in group.items() if key not in ("forms", "means", "exclusions")}
        if "forms" in group:
            best = group["forms"][group["chosen"]]
            item |= {key: best[key] for key in ("parameters", "borne", "aicc", "held_out")}
            item["intervals"] = best.get("intervals")
        short.append(item)
    return short


def panel(axes: Axes, spec: LawFigure, table: Table, fit: dict[str, Any] | None) -> pd.DataFrame:
    """Draw one law into `axes`; returns the rows shown. Shared with scaling_laws."""
    spec = with_hue(spec, table, table.select(spec.where, [spec.x]), [spec.x])
    rows = table.select(spec.where, [spec.x, spec.y, *([spec.hue] if spec.hue else [])])
    rows = rows[pd.to_numeric(rows[spec.y], errors="coerce").notna()]
    if not len(rows):
        raise UserError(f"{table.experiment} has no measurement of {spec.y}: the figure would be empty")
    values = ordered(rows[spec.hue]) if spec.hue else [None]
    palette = colours(values)
    low, high = np.inf, -np.inf
    places = rows[spec.x].to_numpy(float) + label(spec.x).offset
    spread = _spread(rows, spec)
    for index, value in enumerate(values):
        part = rows[is_value(rows[spec.hue], value)] if spec.hue else rows
        group = _group(fit, value, bool(spec.hue))
        name = hue_name(spec.hue, value) if spec.hue else None
        marks = _marks(axes, spec, part, group, palette[value], MARKERS[index % len(MARKERS)], name, spread)
        low, high = min(low, *marks), max(high, *marks)
        if group and "forms" in group:
            _curve(axes, group, palette[value], spec.extrapolate, spec.y == "error")
    if spec.envelope:
        _envelope(axes, rows, spec)
    for point in spec.reported:
        axes.plot(point.x, point.y, "*", color=GREY, markersize=9, zorder=5)
        axes.annotate(
            point.label,
            (point.x, point.y),
            xytext=(6, 4),
            textcoords="offset points",
            fontsize=6.5,
            color=GREY,
        )
        low, high = min(low, point.y), max(high, point.y)
    _scales(axes, spec, places, low, high)
    return rows


def _spread(rows: pd.DataFrame, spec: LawFigure) -> tuple[float, int] | None:
    """Seed spread pooled over every point of the figure: (standard deviation of the log, degrees of freedom)."""
    values = rows[spec.y].to_numpy(float)
    if spec.y == "error":
        values = np.where(values <= 0, 0.5 / rows["puzzles"].to_numpy(float), values)
    keys = [rows[name].astype("object").where(rows[name].notna(), "") for name in (spec.x, spec.hue) if name]
    points = np.array(["|".join(map(str, cells)) for cells in zip(*keys)])
    return pooled_spread(values[values > 0], points[values > 0])


def _group(fit: dict[str, Any] | None, value: Any, by_hue: bool) -> dict[str, Any] | None:
    for group in fit["groups"] if fit else []:
        if not by_hue or group["hue"] == value or (group["hue"] is None and value is None):
            return group
    return None


def _marks(
    axes: Axes,
    spec: LawFigure,
    rows: pd.DataFrame,
    group: dict[str, Any] | None,
    colour: str,
    marker: str,
    name: str | None,
    spread: tuple[float, int] | None,
) -> tuple[float, float]:
    """Seeds, means and intervals of one colour; returns the lowest and highest value shown."""
    x = rows[spec.x].to_numpy(float) + label(spec.x).offset
    y = rows[spec.y].to_numpy(float)
    tested = rows["puzzles"].to_numpy(float)
    zero = (y <= 0) & (spec.y == "error")
    shown = np.where(zero, 0.5 / tested, y)
    ok = (shown > 0) & (x > 0)
    x, shown, tested, rows = x[ok], shown[ok], tested[ok], rows[ok]
    if not len(x):
        return np.inf, -np.inf
    excluded = {item["run"] for item in group["exclusions"]} if group else set()
    out = rows["run"].isin(excluded).to_numpy()
    axes.plot(
        x,
        shown,
        marker,
        color=colour,
        alpha=0.35,
        markersize=3,
        markeredgewidth=0,
        linestyle="none",
        zorder=3,
    )
    low, high = float(shown.min()), float(shown.max())
    means = pooled_log_intervals(shown, x, spread=spread, most=1.0 if spec.y == "error" else np.inf)
    for place, (centre, lower, upper) in means.items():
        here = x == place
        if spec.y == "error":
            bounds = wilson(centre * tested[here][0], tested[here][0])
            axes.plot([place, place], bounds, color="#bdbdbd", linewidth=3.2, solid_capstyle="butt", zorder=2)
            low, high = min(low, max(bounds[0], 0.25 / tested[here][0])), max(high, bounds[1])
        if np.isfinite(lower):
            axes.plot([place, place], [lower, upper], color=colour, linewidth=1.1, zorder=4)
            low, high = min(low, lower), max(high, upper)
        hollow = bool(out[here].all())
        axes.plot(
            place,
            centre,
            marker,
            color=colour,
            markerfacecolor="white" if hollow else colour,
            markersize=4,
            zorder=5,
            linestyle="none",
        )
    if name:
        axes.plot([], [], marker=marker, color=colour, linestyle="-", label=name)
    return low, high


def _curve(axes: Axes, group: dict[str, Any], colour: str, extrapolate: float, share: bool) -> None:
    """The chosen law: solid over the data, dashed beyond, ribbon where there is an interval."""
    curve = group["forms"][group["chosen"]]["curve"]
    x, y = np.array(curve["x"]), np.array(curve["y"], float)
    y = np.minimum(y, 1.0) if share else y
    end = group["range"][0][1]
    tip = 1 + 1e-9
    inside, shown = x <= end * tip, x <= end * extrapolate * tip
    beyond = (x >= end / tip) & shown
    axes.plot(x[inside], y[inside], color=colour, zorder=3)
    axes.plot(x[beyond], y[beyond], color=colour, linestyle=(0, (4, 2)), linewidth=1.1, zorder=3)
    if "low" in curve:
        low, high = np.array(curve["low"], float), np.array(curve["high"], float)
        if share:
            low, high = np.minimum(low, 1.0), np.minimum(high, 1.0)
        axes.fill_between(x[shown], low[shown], high[shown], color=colour, alpha=0.14, linewidth=0, zorder=1)


def _envelope(axes: Axes, rows: pd.DataFrame, spec: LawFigure) -> None:
    """The best mean at each price: the lower envelope over all colours."""
    means = rows.groupby([spec.x, "point"], sort=True)[spec.y].mean().reset_index()
    best = frontier(means[spec.x].to_numpy(), means[spec.y].to_numpy(), higher_is_better=False)
    chosen = means.iloc[best]
    axes.plot(
        chosen[spec.x],
        chosen[spec.y],
        color="black",
        linewidth=0.9,
        linestyle=":",
        drawstyle="steps-post",
        label="envelope",
        zorder=6,
    )


def _scales(axes: Axes, spec: LawFigure, places: np.ndarray, low: float, high: float) -> None:
    """Log axes around what is measured: an extrapolated or unresolved curve must not squash the data."""
    text = label(spec.y)
    top = 1.0 if spec.y in ("error",) else np.inf
    if text.log and low > 0:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.6, min(high * 1.5, max(top * 1.15, high)))
        axes.set_xscale("log" if label(spec.x).log and (places > 0).all() else "linear")
    axis_scale(axes, "x", label(spec.x), places)
    axis_scale(axes, "y", text, np.array([low, high]))


def plain_sentence(rows: pd.DataFrame, spec: Figure) -> str:
    """What is shown where no law is fitted: the ends of the range."""
    means = rows.groupby(spec.x)[spec.y].mean()
    text = label(spec.y)
    values = [f"{100 * v:.1f} %" if text.percent else number(v) for v in (means.iloc[0], means.iloc[-1])]
    name = text.name.split(" (")[0]
    return f"{name[:1].upper()}{name[1:]} goes from {values[0]} to {values[1]} over the range."
