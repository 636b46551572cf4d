"""Error against training compute for several model sizes, with the joint law in parameters and FLOPs."""

from __future__ import annotations

from typing import Any

import numpy as np

from trm.analysis.figures.base import (
    MARKERS,
    ONE,
    Drawing,
    axis_scale,
    canvas,
    colours,
    finish,
    fit_of,
    heading,
    legend,
    ordered,
    strip_of,
    table_of,
)
from trm.analysis.figures.law import caption
from trm.analysis.figures.marks import seeds_and_means
from trm.analysis.labels import label
from trm.analysis.sentences.special import joint_sentence
from trm.analysis.specs import JointFigure
from trm.analysis.stats.intervals import pooled_log_intervals
from trm.analysis.stats.pareto import frontier
from trm.analysis.tables import Table, plain
from trm.analysis.words import compact, interval, number, share


def draw(spec: JointFigure, tables: list[Table], fits: list[dict[str, Any]]) -> Drawing:
    """One colour a size; the law's curve at each size and the lower envelope of the means."""
    table = table_of(tables, tables[0].experiment)
    rows = plain(table.select(spec.where, [spec.x, spec.second]))
    group = fit_of(fits, spec.fits(table.experiment)[0])["groups"][0]
    sizes = ordered(rows[spec.x])
    shades = colours(sizes)
    figure, axes = canvas(1.45 * ONE, 3.1, strip=strip_of(len(sizes) + 1, 4, title=True))
    axis = axes[0, 0]
    form = group.get("forms", {}).get("joint")
    y = np.where(rows["error"] > 0, rows["error"], 0.5 / rows["puzzles"])
    cost = rows[spec.second].to_numpy(float)
    left_out = rows["run"].isin({item["run"] for item in group["exclusions"]}).to_numpy()
    means: list[tuple[float, float]] = []
    handles = []
    points = np.array([f"{n}:{c}" for n, c in zip(rows[spec.x], cost)])
    pooled = pooled_log_intervals(y, points, most=1.0)
    for index, size in enumerate(sizes):
        here = (rows[spec.x] == size).to_numpy()
        marker = MARKERS[index % len(MARKERS)]
        means += seeds_and_means(
            axis, cost, y, points, pooled, left_out, here, shades[size], marker, shift=1.05
        )
        if form:
            _curve(axis, form["parameters"], float(size), cost[here], shades[size])
        handles.append(axis.plot([], [], marker=marker, color=shades[size], label=compact(float(size)))[0])
    best = frontier(np.array([m[0] for m in means]), np.array([m[1] for m in means]), higher_is_better=False)
    edge = np.array(means)[best]
    handles += axis.plot(
        edge[:, 0], edge[:, 1], color="black", lw=0.9, ls=":", ds="steps-post", label="envelope"
    )
    axis_scale(axis, "x", label(spec.second), cost)
    axis.set_yscale("log")
    axis.set_ylim(y.min() / 1.6, min(1.15, y.max() * 1.5))
    axis_scale(axis, "y", label("error"), y)
    title = spec.title or "Parameters and compute, one law"
    heading(axis, title, _equation(form, group))
    legend(figure, handles, 4, label(spec.x).name)
    return finish(
        figure,
        spec,
        [table],
        rows,
        title=title,
        caption="Lines: the joint law at each size. Dotted: best mean at any price. "
        + caption({"groups": [group]}),
        sentence=joint_sentence(group),
        numbers={"parameters": form["parameters"], "intervals": form.get("intervals")} if form else {},
    )


def _curve(axes: Any, values: dict[str, float], size: float, cost: np.ndarray, colour: str) -> None:
    line = np.geomspace(cost.min(), 4 * cost.max(), 60)
    law = values["E"] + values["A"] * size ** -values["a"] + values["B"] * line ** -values["b"]
    law = np.minimum(law, 1.0)
    inside = line <= cost.max()
    axes.plot(line[inside], law[inside], color=colour, linewidth=1.2)
    axes.plot(line[~inside], law[~inside], color=colour, linewidth=1, linestyle=(0, (4, 2)))


def _equation(form: dict[str, Any] | None, group: dict[str, Any]) -> str:
    if form is None:
        return f"no fit: {group['error']}"
    values, bounds = form["parameters"], form.get("intervals") or {}
    parts = [f"{key} = {number(values[key], 2)}{interval(bounds.get(key))}" for key in ("a", "b")]
    floor = f"E = {share(values['E'])}{interval(bounds.get('E'), 2, 100)} %"
    return "$e = E + A\\,N^{-a} + B\\,C^{-b}$\n" + ",  ".join([*parts, floor])
