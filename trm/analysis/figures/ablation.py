"""Categorical comparison: values of every seed, and paired seed differences from a named baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

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
    with_hue,
    wrap,
)
from trm.analysis.labels import label
from trm.analysis.sentences.comparisons import ablation_answer, ablation_sentence, interaction_sentence
from trm.analysis.specs import AblationFigure
from trm.analysis.stats.intervals import Mean, interaction, mean, paired
from trm.analysis.tables import Table
from trm.analysis.words import place, signed, spoken, value_name
from trm.errors import UserError
from trm.study.schema import EvaluationConfig, RunConfig

CAPTION = (
    "Left: one faint mark a seed, mean with Student 95 % interval. Right: mean difference from the baseline "
    "({baseline}, dashed; shares in percentage points, pp) over pairs of equal seeds, with its 95 % interval; filled "
    "where it excludes zero."
)


def draw(spec: AblationFigure, tables: list[Table], fits: list[dict[str, Any]]) -> Drawing:
    """Values left, paired differences right, further metrics beside."""
    table = table_of(tables, tables[0].experiment)
    spec = with_hue(spec, table, table.select(spec.where, [spec.x]), [spec.x])
    columns = [spec.x, spec.y, *([spec.hue] if spec.hue else [])]
    rows = table.select(spec.where, columns)
    rows = rows[pd.to_numeric(rows[spec.y], errors="coerce").notna()]
    if not len(rows):
        raise UserError(f"{table.experiment} has no measurement of {spec.y}: the figure would be empty")
    if spec.hue:
        rows = _comparable(rows, spec.hue, spec.x)
    values = ordered(rows[spec.x])
    baseline = baseline_of(spec, values, table.info.get("recipe") or {})
    hues = ordered(rows[spec.hue]) if spec.hue else [None]
    extra = [name for name in spec.second if rows[name].notna().any()]
    panels = 2 + len(extra)
    across = 2 if spec.hue == "series" else 6
    height = 0.9 + (0.26 + 0.16 * len(hues)) * len(values)
    strip = strip_of(len(hues), across, title=True) if spec.hue else 0.0
    figure, axes = canvas(TWO, max(1.7, height), 1, panels, sharey=True, strip=strip)
    shades = colours(hues)
    names = [value_name(value, spec.x) for value in values]
    changes: dict[Any, dict[str, Mean]] = {}
    levels: dict[Any, float] = {}
    for index, hue in enumerate(hues):
        part = rows[is_value(rows[spec.hue], hue)] if spec.hue else rows
        shift = (index - (len(hues) - 1) / 2) * 0.62 / max(1, len(hues))
        _values(axes[0, 0], part, spec.x, spec.y, values, shades[hue], shift)
        for axis, name in zip(axes[0, 2:], extra):
            _values(axis, part, spec.x, name, values, shades[hue], shift)
        changes[hue] = _differences(
            axes[0, 1], part, spec, values, baseline, shades[hue], shift, named=index == 0
        )
        levels[hue] = float(part[is_value(part[spec.x], baseline)][spec.y].mean())
    base_name = spoken(spec.x, baseline)
    _dress(axes[0], spec, extra, names, rows)
    if spec.hue:
        handles = [
            axes[0, 0].plot([], [], "o", color=shades[h], label=hue_name(spec.hue, h))[0] for h in hues
        ]
        legend(figure, handles, across, legend_title(spec.hue, rows))
    title = spec.title or f"{label(spec.y).name.split(' on ')[0].capitalize()} by {label(spec.x).name}"
    heading(axes[0, 0], title)
    sentences = []
    for hue in hues:
        text = ablation_sentence(changes[hue], base_name, spec.y, levels[hue])
        head = f"At {place(spec.hue, hue)}: " if spec.hue else ""
        sentences.append(head + (text[:1].lower() + text[1:] if head else text))
    crossed = interactions(rows, spec, values, baseline, hues)
    sentences += [item["sentence"] for item in crossed]
    return finish(
        figure,
        spec,
        [table],
        rows,
        title=title,
        caption=CAPTION.format(baseline=base_name),
        sentence=" ".join(sentences),
        answer=ablation_answer(changes, base_name, spec.y, crossed),
        numbers={
            "baseline": baseline,
            "x": spec.x,
            "differences": [
                {"hue": hue, "value": name, "mean": c.value, "low": c.low, "high": c.high, "pairs": c.n}
                for hue, found in changes.items()
                for name, c in found.items()
            ],
            "interactions": crossed,
        },
    )


def _comparable(rows: pd.DataFrame, hue: str, x: str) -> pd.DataFrame:
    """Without the hues at which only one value of x was measured, if others compare several."""
    groups = rows.groupby(rows[hue].astype("object").where(rows[hue].notna(), ""))[x]
    kept = rows[groups.transform(lambda part: part.nunique(dropna=False)) > 1]
    return kept if len(kept) else rows


def baseline_of(spec: AblationFigure, values: list[Any], scale: Mapping[str, Any]) -> Any:
    """The named baseline, else the value of the scale's own recipe, or of the paper's where the scale says none, or
    the nearest number to it, else the first.

    Raises:
        UserError: the named baseline is not a value of the grid.
    """
    if spec.baseline is not None:
        for value in values:
            if value == spec.baseline or str(value) == str(spec.baseline):
                return value
        raise UserError(f"baseline {spec.baseline} is not a value of {spec.x}: {', '.join(map(str, values))}")
    section, _, field = spec.x.partition(".")
    recipe: Any = EvaluationConfig() if section == "evaluation" else getattr(RunConfig(), section, None)
    wanted = [value for value in (scale.get(spec.x), getattr(recipe, field, None)) if value is not None]
    for value in wanted:
        if value in values:
            return value
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if numbers and wanted and isinstance(wanted[0], (int, float)):
        return min(numbers, key=lambda value: abs(value - wanted[0]))
    return values[0]


def by_seed(rows: pd.DataFrame, spec: AblationFigure, value: Any) -> pd.Series:
    """The metric of one value of x, indexed by seed."""
    part = rows[is_value(rows[spec.x], value)]
    return pd.Series(part[spec.y].to_numpy(float), index=part["seed"].to_numpy())


def interactions(
    rows: pd.DataFrame, spec: AblationFigure, values: list[Any], baseline: Any, hues: list[Any]
) -> list[dict[str, Any]]:
    """Does each effect at the first hue value hold at the others?"""
    found = []
    for hue in hues[1:]:
        for value in values:
            if value == baseline:
                continue
            series = [
                by_seed(rows[is_value(rows[spec.hue], where)], spec, level)
                for where in (hues[0], hue)
                for level in (baseline, value)
            ]
            if min(map(len, series)) == 0:
                continue
            change = interaction(*series)
            effect = spoken(spec.x, value)
            here, there = (place(spec.hue, level) for level in (hues[0], hue))
            found.append(
                {
                    "hue": spec.hue,
                    "effect": effect,
                    "where": here,
                    "elsewhere": there,
                    "mean": change.value,
                    "low": change.low,
                    "high": change.high,
                    "pairs": change.n,
                    "sentence": interaction_sentence(effect, here, there, change, spec.y),
                }
            )
    return found


def _values(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, values: list[Any], colour: str, shift: float
) -> None:
    for row, value in enumerate(values):
        data = rows[is_value(rows[x], value)][y].dropna().to_numpy(float)
        if not len(data):
            continue
        summary = mean(data)
        where = row + shift
        axes.plot(data, [where] * len(data), "o", color=colour, alpha=0.4, markersize=3, markeredgewidth=0)
        if summary.bounds:
            axes.plot(_within(summary.bounds, y), [where, where], color=colour, linewidth=1.2)
        axes.plot(summary.value, where, "o", color=colour, markersize=5)


def _within(bounds: tuple[float, float], column: str) -> tuple[float, float]:
    """A share's interval cannot leave [0, 1], nor a speed's or a size's what is above 0."""
    text = label(column)
    low = max(0.0, bounds[0]) if text.percent or text.log else bounds[0]
    return low, min(1.0, bounds[1]) if text.percent else bounds[1]


def _differences(
    axes: Axes,
    rows: pd.DataFrame,
    spec: AblationFigure,
    values: list[Any],
    baseline: Any,
    colour: str,
    shift: float,
    named: bool,
) -> dict[str, Mean]:
    """Paired differences of one colour; `named`: write beside its baseline what it is."""
    reference = by_seed(rows, spec, baseline)
    found = {}
    for row, value in enumerate(values):
        where = row + shift
        if value == baseline:
            axes.plot(0, where, "|", color=colour, markersize=8)
            if named:
                axes.annotate(
                    "baseline", (0, where), xytext=(4, 3), textcoords="offset points", fontsize=6, color=GREY
                )
            continue
        other = by_seed(rows, spec, value)
        if not len(other):
            continue
        change = paired(reference, other)
        if change.bounds and label(spec.y).percent:  # two shares differ by 100 points at most
            change = replace(change, low=max(-1.0, change.low), high=min(1.0, change.high))
        found[spoken(spec.x, value)] = change
        if not change.n:
            continue
        if change.bounds:
            axes.plot(change.bounds, [where, where], color=colour, linewidth=1.2)
        sure = change.sign != 0
        axes.plot(
            change.value, where, "o", color=colour, markersize=5, markerfacecolor=colour if sure else "white"
        )
    return found


def _dress(
    axes: np.ndarray, spec: AblationFigure, extra: list[str], names: list[str], rows: pd.DataFrame
) -> None:
    """Labels of all panels; log axes for times, memories and speeds."""
    axes[0].set_yticks(range(len(names)), [wrap(name, 22) for name in names])
    axes[0].set_ylim(len(names) - 0.45, -0.55)
    if spec.x != "label":  # words chosen for the grid's points speak for themselves
        name = label(spec.x).name
        axes[0].set_ylabel(wrap(name[:1].upper() + name[1:], max(14, 6 * len(names))))
    axis_scale(axes[0], "x", label(spec.y), rows[spec.y].to_numpy(), log=False)
    axes[1].axvline(0, color=GREY, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
    points = "percentage points" if len(axes) < 4 else "pp"
    unit = points if label(spec.y).percent else label(spec.y).unit
    axes[1].set_xlabel(f"Difference from baseline ({unit})" if unit else "Difference from baseline")
    if label(spec.y).percent:
        axes[1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: signed(100 * value)))
    for axis, name in zip(axes[2:], extra):
        measured = rows[name].to_numpy(float)
        if np.nanmax(measured) - np.nanmin(measured) <= 1e-6 * abs(
            np.nanmax(measured)
        ):  # no zoom on rounding
            axis.set_xlim(0, 2 * np.nanmax(measured) or 1)
        axis_scale(axis, "x", label(name), measured, log=False)
    width = {2: 46, 3: 30, 4: 23}.get(len(axes), 18)
    for axis, name in zip(axes, (spec.y, "", *extra)):
        axis.set_xlabel(wrap(axis.get_xlabel(), width))
        axis.grid(axis="y", visible=False)
        axis.xaxis.get_major_locator().set_params(nbins=3 if label(name).binary else 5)  # `426 MiB` is long
