"""`isoflop`: a metric against width, or another choice, at equal training compute, and how the best one grows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from trm.analysis.labels import label
from trm.analysis.laws import claims_of_fit, followed
from trm.analysis.lazy import Axes, Table, common, np, stats
from trm.analysis.specs import Column, Figure, FitSpec, Metric
from trm.analysis.words import compact, noun, sentence

BUDGET = "train_flops"
"""Runs within 10 % of each other share a budget."""


class Spec(Figure):
    """A parabola for each budget, its vertex, and the power law through the vertices (Hoffmann et al. 2022)."""

    kind: Literal["isoflop"] = "isoflop"
    reading: ClassVar[str] = "each curve spends one budget in several ways; the diamond is the best"
    best: Column = "model.d_model"
    """What is spent more or less of at equal compute."""
    y: Metric = "cross_entropy"

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        keys: dict[str, Any] = {"x": self.best, "second": BUDGET, "y": self.y, "where": self.where}
        return (FitSpec(experiments=(experiment,), form="isoflop", **keys),)


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """Left: the metric against width, one colour a budget. Right: the best width and its steps against the budget."""
    table = tables[0]
    fit = common.fit_of(fits, spec.fits(table.experiment)[0])
    group = fit["groups"][0]
    rows = common.rows_of(table, spec.where, spec.y, spec.best, BUDGET)
    figure, axes = common.panels(3, 2.7)
    optima = group.get("optima", [])
    shades = common.colours([item["second"] for item in optima])
    values = common.positive(rows, spec.y)
    rows = rows.assign(_budget=_nearest(rows[BUDGET].to_numpy(float), list(shades)), _y=values)
    rows["_point"] = rows.groupby(["_budget", spec.best], dropna=False).ngroup()
    means = stats.pooled_log_intervals(values, rows["_point"].to_numpy())
    for index, (value, colour) in enumerate(shades.items()):
        part = rows[rows["_budget"] == value]
        for point, here in part.groupby("_point"):
            at, marker = float(here[spec.best].iloc[0]), common.MARKERS[index % 8]
            common.seed_marks(axes[0], at, here["_y"], colour, marker, summary=means[point])
        _parabola(axes[0], optima[index], colour)
    common.axis_scale(axes[0], "x", label(spec.best), rows[spec.best])
    common.error_scale(axes[0], spec.y, float(values.min()), float(values.max()))
    common.heading(axes[0], sentence(f"{noun(spec.y)} at equal compute"))
    growth(axes[1], group, "x", spec.best, BUDGET)
    growth(axes[2], group, "steps", "training.steps", BUDGET)
    common.hue_legend(figure, BUDGET, {compact(value): colour for value, colour in shades.items()}, columns=6)
    return common.Drawing(
        figure,
        rows,
        title=f"Where compute is best spent: {noun(spec.best)} or steps",
        caption=(
            f"Left: seeds and their mean; a parabola in log {noun(spec.best)} for each budget, its vertex a diamond "
            f"(hollow: at the edge of the grid). Middle and right: the best {noun(spec.best)} and the steps that it "
            "leaves, with 95 % intervals; every draw resamples the runs and finds its own optima. Lines: power laws "
            "through the filled marks; their intervals also cover a fit with one curvature for all budgets. "
        ),
        claims=claims_of_fit(fit),
        carried=group["runs"],
    )


def _nearest(cost: np.ndarray, budgets: list[float]) -> np.ndarray:
    """The budget that each run belongs to [N]; NaN: none within 20 %."""
    if not budgets:
        return np.full(len(cost), np.nan)
    ratios = np.abs(np.log(cost[:, None] / np.array(budgets)))
    best = np.array(budgets)[ratios.argmin(axis=1)]
    return np.where(ratios.min(axis=1) < 0.2, best, np.nan)


def _parabola(axes: Axes, item: Mapping[str, Any], colour: str) -> None:
    low, high = item["range"]
    width = np.geomspace(low, high, 60)
    axes.plot(width, np.exp(np.polyval(item["parabola"], np.log(width))), color=colour, linewidth=1.0)
    face = "white" if item["edge"] else colour
    axes.plot(
        item["x"], item["value"], "D", color="black", markerfacecolor=face, markersize=6, mew=0.8, zorder=6
    )


def growth(axes: Axes, group: Mapping[str, Any], key: str, column: str, over: str) -> None:
    """The best value of a column, or the steps that it leaves, against another one, log-log."""
    common.heading(axes, f"Best {noun(column)}" if key == "x" else "Steps at the best")
    if "optima" not in group:
        style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": common.SMALL}
        axes.text(0.5, 0.5, common.wrap("no optimum: " + group["error"], 30), **style)
        axes.set_axis_off()
        return
    best_values(axes, group, key)
    common.axis_scale(axes, "y", label(column), [item[key] for item in group["optima"]], log=True)
    common.axis_scale(axes, "x", label(over), [item["second"] for item in group["optima"]], log=True)


def best_values(axes: Axes, group: Mapping[str, Any], key: str = "x", colour: str = "#0072B2") -> None:
    """Optima with their intervals, hollow at the edge of the grid; joined by their power law where one is followed."""
    for item in group["optima"]:
        if item[f"{key}_interval"]:
            axes.plot([item["second"]] * 2, item[f"{key}_interval"], color=colour, linewidth=1.1)
        face = "white" if item["edge"] else colour
        axes.plot(item["second"], item[key], "D", color=colour, markerfacecolor=face, markersize=4.5)
    if followed(group):
        inside = [item for item in group["optima"] if not item["edge"]]
        at = np.log([item["second"] for item in inside])
        line = np.polyval(np.polyfit(at, np.log([item[key] for item in inside]), 1), at)
        axes.plot(np.exp(at), np.exp(line), color=colour, linewidth=1.0)
