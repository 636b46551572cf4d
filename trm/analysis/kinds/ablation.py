"""`ablation`: a categorical comparison with a named baseline, by paired differences between equal seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from trm.analysis.findings import Contrast, compared, contrast
from trm.analysis.kinds.restarts import attempts_of
from trm.analysis.labels import label
from trm.analysis.lazy import Axes, Table, common, np, pd, stats
from trm.analysis.specs import Column, Figure, Metric, Scalar
from trm.analysis.words import (
    changed,
    count,
    listed,
    noun,
    number,
    sentence,
    setting_in_words,
    signed,
    value_name,
)
from trm.errors import UserError
from trm.study.schema import EvaluationConfig, RunConfig

UNMATCHED = 1.1
"""Ratio of training FLOPs from which compared values are said to differ in them."""


class Spec(Figure):
    """Values of every seed, and paired seed differences from the baseline."""

    kind: Literal["ablation"] = "ablation"
    reading: ClassVar[str] = (
        "differences to the baseline of the same seeds: an interval that leaves out zero is an effect"
    )
    x: Column
    y: Metric = "exact_accuracy"
    hue: Column | None = None
    """Shown separately for each value, with the interaction: does the effect hold at another batch or model size?"""
    baseline: Scalar = None
    """Value of `x` the others are compared with; null: the scale's recipe, else the first."""
    second: tuple[Metric, ...] = ()
    """Further metrics, one panel each (wall_seconds, peak_memory_bytes, rows_per_second)."""


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """Values, paired differences, further metrics, from left to right."""
    table = tables[0]
    spec = common.with_hue(spec, table, spec.x)
    rows = common.rows_of(table, spec.where, spec.y, spec.x, spec.hue)
    if spec.hue:
        rows = _comparable(rows, spec.hue, spec.x)
    values = common.ordered(rows[spec.x])
    baseline = baseline_of(spec, values, table.info.get("recipe") or {})
    alike = {hue: table.alike(part, spec.x) for hue, part in common.groups(rows, spec.hue).items()}
    parts = {hue: part for hue, (part, _) in alike.items()}
    shades = common.colours(list(parts))
    extra = [name for name in spec.second if rows[name].notna().any()]
    lines = max(name.count("\n") + 1 for name in _names(values, spec.x))
    height = max(1.7, 0.9 + max(0.26 + 0.16 * len(parts), 0.15 * lines) * len(values))
    figure, axes = common.canvas(common.TWO, height, 1, 2 + len(extra), sharey=True)
    base_name, chosen = setting_in_words(spec.x, baseline), attempts_of(spec.where)
    contrasts: dict[tuple[Any, ...], Contrast] = {}
    shifts = {hue: (index - (len(parts) - 1) / 2) * 0.62 / len(parts) for index, hue in enumerate(parts)}
    for hue, part in parts.items():
        series = {value: by_seed(part, spec, value) for value in values}
        place = listed([*filter(None, [chosen, spec.hue and setting_in_words(spec.hue, hue)])])
        for row, value in enumerate(values):
            here = part[common.is_value(part[spec.x], value)]
            for axis, name in zip((axes[0, 0], *axes[0, 2:]), (spec.y, *extra)):
                _values(axis, row + shifts[hue], here, name, shades[hue])
            if value != baseline and len(series[value]):
                names = setting_in_words(spec.x, value), base_name, place
                contrasts[hue, value] = contrast(series[baseline], series[value], *names)
        axes[0, 1].plot(0, values.index(baseline) + shifts[hue], "|", color=shades[hue], markersize=8)
    found = compared(spec.y, contrasts | interactions(table, parts, spec, values, baseline))
    for (hue, value), item in contrasts.items():
        if item.mean.n:
            at = values.index(value) + shifts[hue]
            mean = replace(item.mean, bounds=found[hue, value].interval)
            mark: dict[str, Any] = {"summary": mean, "hollow": not found[hue, value].sign, "sideways": True}
            common.seed_marks(axes[0, 1], at, [mean.value], shades[hue], **mark)
    _dress(axes[0], spec, extra, values, rows)
    low, high = axes[0, 1].get_xlim()
    side = "left" if -low < 0.35 * (high - low) else "right"  # where there is room
    spot = (0, values.index(baseline) - 0.31)
    common.note(axes[0, 1], "baseline", spot, (3 if side == "left" else -3, 1), ha=side)
    common.hue_legend(figure, spec.hue, shades, marker="o")
    raw = [item.mean for item in contrasts.values()]
    remarks = [power(raw, stats.detectable(raw, len(found)), spec.y), unmatched(parts, spec.x, values)]
    remarks += [unreached(table, spec), *dict.fromkeys(lost for _, lost in alike.values())]
    return common.Drawing(
        figure,
        rows,
        title=sentence(f"{noun(spec.y)} by {label(spec.x).name}"),
        caption=(
            f"Left: seeds faint, means strong. Right: paired difference from {base_name}, filled where "
            "it is significant at 5 % after Holm's correction."
        ),
        findings=list(found.values()),
        remarks=" ".join(filter(None, remarks))
        if found
        else f"Only {base_name} was measured: nothing to compare.",
    )


def power(differences: Sequence[stats.Mean], size: float | None, column: str) -> str:
    """What the seeds could have shown. size: `stats.detectable` of the differences."""
    if size is None:
        return ""
    pairs = count(min(mean.n for mean in differences if mean.n > 1), "pair").capitalize()
    if label(column).percent and size >= 1:
        return f"{pairs} of seeds are too few to show any difference (80 % power)."
    return f"{pairs} of seeds can show a difference of {changed(column, size, sign=False)} (80 % power)."


def unmatched(parts: Mapping[Any, pd.DataFrame], x: str, values: Sequence[Any]) -> str:
    """Whether the values of a colour differ in training compute by more than UNMATCHED, so that an effect may be that
    of compute."""
    found = []
    for part in parts.values():
        costs = [float(part.loc[common.is_value(part[x], value), "train_flops"].mean()) for value in values]
        costs = [cost for cost in costs if cost > 0]
        if costs and max(costs) > UNMATCHED * min(costs):
            found += [min(costs), max(costs)]
    if not found:
        return ""
    return f"Training compute is not matched: {number(min(found), 2)} to {number(max(found), 2)} FLOPs a run."


def unreached(table: Table, spec: Spec) -> str:
    """With which values some runs never reach the target, so that they are in no pair."""
    if "_to_" not in spec.y:
        return ""
    rows = table.select(spec.where, [spec.x])
    counts = rows[spec.y].isna().groupby(rows[spec.x], dropna=False, sort=False).agg(["sum", "size"])
    named = [
        f"{setting_in_words(spec.x, value)} ({lost} of {size})"
        for value, lost, size in counts.itertuples()
        if lost
    ]
    return f"Left out are runs that never reach the target: {listed(named)}." if named else ""


def _comparable(rows: pd.DataFrame, hue: str, x: str) -> pd.DataFrame:
    """Without the hues at which only one value of x was measured, if others compare several."""
    parts = rows.groupby(rows[hue].astype("object").where(rows[hue].notna(), ""))[x]
    kept = rows[parts.transform(lambda part: part.nunique(dropna=False)) > 1]
    return kept if len(kept) else rows


def baseline_of(spec: Spec, values: list[Any], scale: Mapping[str, Any]) -> Any:
    """The named baseline, else the value of the scale's recipe, or of the paper's, or the nearest number, or the first.
    UserError: the named baseline is not a value of the grid."""
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


def by_seed(rows: pd.DataFrame, spec: Spec, value: Any) -> pd.Series:
    """The metric of one value of x, indexed by seed."""
    return rows[common.is_value(rows[spec.x], value)].set_index("seed")[spec.y].astype(float)


def interactions(
    table: Table, parts: Mapping[Any, pd.DataFrame], spec: Spec, values: list[Any], baseline: Any
) -> dict[tuple[Any, ...], Contrast]:
    """Does each effect at the first hue value hold at the others, at the points that both have?"""
    first, *others = parts
    found: dict[tuple[Any, ...], Contrast] = {}
    for hue in others:
        try:
            rows, _ = table.alike(pd.concat([parts[first], parts[hue]]), str(spec.hue), spec.x)
        except UserError:
            continue
        both = common.groups(rows, spec.hue)
        against, place = (setting_in_words(str(spec.hue), at) for at in (first, hue))
        for value in (value for value in values if value != baseline):
            series = [by_seed(both[at], spec, level) for at in (first, hue) for level in (baseline, value)]
            if min(map(len, series)):
                names = setting_in_words(spec.x, value), against, place
                mean = stats.interaction(*series)
                found["interaction", hue, value] = Contrast(mean, *names, kind="interaction")
    return found


def _values(axes: Axes, at: float, rows: pd.DataFrame, name: str, colour: str) -> None:
    data = rows.groupby("seed")[name].mean().dropna().to_numpy(float)  # points that a seed has in common
    if len(data):
        summary = common.mean_of(data, name, float(rows["puzzles"].iloc[0]))
        common.seed_marks(axes, at, data, colour, seeds_at=at + 0.09, summary=summary, sideways=True)


def _names(values: Sequence[Any], x: str) -> list[str]:
    """The values as tick labels."""
    return [common.wrap(common.plain(value_name(value, x)), 22) for value in values]


def _dress(axes: np.ndarray, spec: Spec, extra: list[str], values: list[Any], rows: pd.DataFrame) -> None:
    """Labels of all panels."""
    axes[0].set_yticks(range(len(values)), _names(values, spec.x))
    axes[0].set_ylim(len(values) - 0.45, -0.55)
    if spec.x != "label":  # words chosen for the grid's points speak for themselves
        axes[0].set_ylabel(common.wrap(sentence(label(spec.x).name), max(14, 6 * len(values))))
    common.axis_scale(axes[0], "x", label(spec.y), rows[spec.y].to_numpy(), log=False)
    axes[1].axvline(0, color=common.GREY, linewidth=0.8, linestyle=common.DASHES[1], zorder=1)
    unit = "points" if label(spec.y).percent else label(spec.y).unit
    axes[1].set_xlabel(f"Difference from baseline ({unit})" if unit else "Difference from baseline")
    if label(spec.y).percent:
        axes[1].xaxis.set_major_formatter(lambda value, _: signed(100 * value))
    for axis, name in zip(axes[2:], extra):
        data = rows[name].to_numpy(float)
        if np.nanmax(data) - np.nanmin(data) <= 1e-6 * abs(np.nanmax(data)):  # no zoom on rounding
            axis.set_xlim(0, 2 * np.nanmax(data) or 1)
        common.axis_scale(axis, "x", label(name), data, log=False)
    width = {2: 46, 3: 30, 4: 23}.get(len(axes), 18)
    for axis, name in zip(axes, (spec.y, "", *extra)):
        axis.set_xlabel(common.wrap(axis.get_xlabel(), width))
        axis.grid(axis="y", visible=False)
        axis.xaxis.get_major_locator().set_params(nbins=3 if label(name).binary else 5)  # `426 MiB` is long
