"""`pareto`: error against one cost or several, with the Pareto frontier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from trm.analysis.labels import label, lower_is_better
from trm.analysis.lazy import Axes, Table, common, np, pd
from trm.analysis.specs import Column, Figure, Metric
from trm.analysis.words import compact, count, measured, memory, point_name, sentence, thing
from trm.errors import UserError

HEIGHT = 2.7  # inches of a panel with its labels
MOST_NAMES = 8
"""Most frontier points that are labelled."""


class Spec(Figure):
    """One panel per cost. An accuracy is drawn as its error on a log axis, where good points do not pile up."""

    kind: Literal["pareto"] = "pareto"
    reading: ClassVar[str] = "points on the line are beaten by none that costs less"
    cost: Column = "train_flops"
    y: Metric = "exact_accuracy"
    hue: Column | None = None
    costs: tuple[Column, ...] = ()
    """Further costs, one panel each (wall_seconds, peak_memory_bytes)."""


def pareto_sentence(kept: Sequence[tuple[str, float, float]], total: int, cost: str, y: str) -> str:
    """The frontier in words. kept: (name, cost, value) by rising cost."""

    def paid(price: float) -> str:
        return memory(price) if label(cost).binary else f"{compact(price)} {label(cost).unit or thing(cost)}"

    parts = [f"{name} ({measured(y, value)} at {paid(price)})" for name, price, value in kept]
    if len(parts) > 4:
        parts = [*parts[:2], "…", parts[-1]]
    number = f"Of {count(total, 'point')}, {len(kept)} {'is' if len(kept) == 1 else 'are'}"
    if len(kept) == total > 1:
        number = f"All {total} points are"
    return f"{number} on the frontier of {thing(cost)}: {', '.join(parts)}."


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """One panel a cost."""
    table = tables[0]
    spec = common.with_hue(spec, table, table.select(spec.where), [])
    rows = common.rows_of(table, spec.where, spec.y, spec.hue)
    costs = [
        name for name in (spec.cost, *spec.costs) if pd.to_numeric(rows[name], errors="coerce").notna().any()
    ]
    if not costs:
        raise UserError(f"no run of {table.experiment} has {spec.cost}: nothing to draw against")
    shades = common.colours(list(common.groups(rows, spec.hue)))
    figure, axes = common.panels(len(costs), HEIGHT)
    kept = {cost: _panel(axis, rows, spec, cost, shades) for axis, cost in zip(axes, costs)}
    common.hue_legend(figure, spec.hue, shades)
    total = rows["point"].nunique()
    return common.Drawing(
        figure,
        rows,
        title=sentence(f"{thing(shown_metric(spec.y))} against cost"),
        caption=(
            "One mark a grid point: mean over its seeds with Student's 95 % interval. Black line: Pareto frontier "
            f"of the means; costs within {100 * common.EQUAL_COSTS:.0f} % count as equal. Pale marks are dominated."
        ),
        sentence=" ".join(pareto_sentence(kept[cost], total, cost, spec.y) for cost in costs),
        answer=pareto_sentence(kept[costs[0]], total, costs[0], spec.y),
        numbers={"frontier": kept},
    )


class Point(NamedTuple):
    """Mean over the seeds of one setting."""

    name: str
    cost: float
    value: float
    """Of the metric."""
    shown: float
    """On the y axis."""
    rows: pd.DataFrame


def means(rows: pd.DataFrame, by: Sequence[str], cost: str, metric: str) -> list[Point]:
    """A point for each setting with a known cost; `by` are the columns that name a setting."""
    found = []
    for _, part in rows.groupby(list(by), sort=True):
        price = float(pd.to_numeric(part[cost], errors="coerce").mean())
        if np.isfinite(price):
            name = point_name(part["label"].iloc[0])
            shown = float(common.positive(part, shown_metric(metric)).mean())
            found.append(Point(name, price, float(part[metric].mean()), shown, part))
    return found


def shown_metric(metric: str) -> str:
    """What is drawn of a metric: the error of an accuracy."""
    return "error" if metric == "exact_accuracy" else metric


def _panel(
    axes: Axes, rows: pd.DataFrame, spec: Spec, cost: str, shades: dict[Any, str]
) -> list[tuple[str, float, float]]:
    """Draw one cost; returns the frontier as (name, cost, value of the metric)."""
    metric = shown_metric(spec.y)
    points = means(rows, ["point"], cost, spec.y)
    if not points:
        raise UserError(f"no grid point has both {cost} and {spec.y}")
    _, costs, values, shown, _ = map(list, zip(*points))
    sign = -1 if lower_is_better(spec.y) else 1
    best = common.frontier(axes, costs, shown, sign * np.array(values))
    for index, point in enumerate(points):
        hue = next((h for h in shades if spec.hue and h == point.rows[spec.hue].iloc[0]), None)
        summary = common.mean_of(common.positive(point.rows, metric), metric)
        if metric == "error":
            summary = summary.clipped(0.25 / float(point.rows["puzzles"].iloc[0]), 1.0)
        marker, strength = common.MARKERS[list(shades).index(hue) % 8], 1.0 if index in best else 0.4
        mark: dict[str, Any] = {"summary": summary, "strength": strength}
        common.seed_marks(axes, point.cost, [summary.value], shades[hue], marker, **mark)
    common.axis_scale(axes, "x", label(cost), costs)
    if label(metric).log:
        common.error_scale(axes, metric, min(shown), max(shown))
    else:
        common.axis_scale(axes, "y", label(metric), shown, log=False)
    kept = [points[i] for i in best]
    _names(axes, [(point.name, point.cost, point.shown) for point in kept[:MOST_NAMES]])
    return [(point.name, point.cost, point.value) for point in kept]


def _names(axes: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Names of frontier points beside their marks: to the right above, else to the left below; one that would run into
    another in both places is left out."""
    axes.margins(x=0.12)
    wide, high = common.panel_width(axes), 0.7 * HEIGHT
    taken: list[tuple[float, float, float]] = []
    for name, price, value in points:
        across, up = axes.transLimits.transform(axes.transScale.transform((price, value)))
        length = len(name) * common.SMALL * 0.5 / 72 / wide
        for right, offset in ((True, (5, 4)), (False, (-5, -9))):
            start, end = (across, across + length) if right else (across - length, across)
            level = up + offset[1] / 72 / high
            if end > 0.99 or any(
                abs(level - other) < 0.06 and start < b and a < end for a, b, other in taken
            ):
                continue
            taken.append((start, end, level))
            side = "left" if right else "right"
            common.note(axes, name, (price, value), offset, ha=side, color="#333333")
            break
