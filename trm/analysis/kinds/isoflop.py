"""`isoflop`: a metric against width, or another choice, at equal training compute, and how its best value and the loss
there change with compute, or with another variable at one budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from trm.analysis.labels import label
from trm.analysis.laws import findings_of_fit, followed
from trm.analysis.lazy import Axes, Table, common, np, pd, stats
from trm.analysis.specs import EQUAL, SAME, Column, Figure, FitSpec, Minimised
from trm.analysis.words import SYMBOLS, compact, noun, sentence

BUDGET = "train_flops"
"""Runs within 10 % of each other share a budget."""
GROUND, LIGHT = 0.95, 0.12
"""Ends of the ramp of budgets, of matplotlib's `cividis_r`: dark is the largest."""


class Spec(Figure):
    """A parabola for each budget, its vertex, and the power laws through the vertices (Hoffmann et al. 2022).

    With another `equal`, `where` should leave one budget: the figure then shows what replaces what at equal compute.
    """

    kind: Literal["isoflop"] = "isoflop"
    reading: ClassVar[str] = "each curve spends one budget in several ways; the diamond is the best"
    best: Column = "model.d_model"
    """What is spent more or less of at equal compute."""
    equal: Column = BUDGET
    """What the runs of a curve have in common."""
    y: Minimised = "cross_entropy"

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        keys: dict[str, Any] = {"x": self.best, "second": self.equal, "y": self.y, "where": self.where}
        return (FitSpec(experiments=(experiment,), form="isoflop", **keys),)


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """Left: the metric against width, a colour a budget. Middle: the metric at the best width. Right: that width."""
    table = tables[0]
    fit = common.fit_of(fits, spec.fits(table.experiment)[0])
    group, best = fit["groups"][0], noun(spec.best)
    figure, axes = common.panels(3, 2.7)
    rows = curves(axes[0], spec, table, group, spec.equal)
    budget = spec.equal == BUDGET
    cost = rows[BUDGET].astype(float)
    same = "compute" if budget or cost.max() <= EQUAL * cost.min() else noun(spec.equal)
    common.heading(axes[0], common.wrap(sentence(f"{noun(spec.y)} at equal {same}"), 36))
    for axis, key, column in ((axes[1], "best", spec.y), (axes[2], "x", spec.best)):
        common.heading(axis, sentence(f"{'lowest ' if key == 'best' else 'best '}{noun(column)}"))
        growth(axis, group, key, column, spec.equal)
    spent = f"Where compute is best spent: {best} or {'steps' if budget else noun(spec.equal)}"
    return common.Drawing(
        figure,
        rows,
        title=spent if same == "compute" else f"The best {best} at equal {same}",
        caption=f"Each curve is a parabola through {'one budget in FLOPs' if budget else 'equal ' + noun(spec.equal)}, "
        "light to dark; diamonds are its minimum.",
        findings=findings_of_fit(fit),
        carried=group["runs"],
    )


def shades(budgets: Sequence[float]) -> dict[float, Any]:
    """Budget -> colour, from light to dark."""
    from matplotlib import colormaps

    places = np.linspace(LIGHT, GROUND, max(2, len(budgets)))
    return {budget: colormaps["cividis_r"](place) for budget, place in zip(budgets, places)}


def curves(
    axes: Axes, spec: Any, table: Table, group: Mapping[str, Any], equal: str = BUDGET
) -> pd.DataFrame:
    """The metric against the choice, a curve a value of `equal`, named at its end; returns the rows shown. Values that
    too few choices share have points alone."""
    from trm.analysis.fits.optimum import budgets

    rows: pd.DataFrame = common.rows_of(table, spec.where, spec.y, spec.best, equal)
    optima = {item["second"]: item for item in group.get("optima", [])}
    values, shared = common.positive(rows, spec.y), rows[equal].to_numpy(float)
    level, alone = _nearest(shared, list(optima)), shared if "." in equal else budgets(shared)
    rows = rows.assign(_budget=np.where(np.isnan(level), alone, level), _y=values)
    point = rows.groupby([name for name in SAME if name in rows], dropna=False).ngroup()
    means = stats.pooled_log_intervals(values, point.to_numpy())
    ends: list[tuple[float, float, str, Any]] = []
    for budget, colour in shades(sorted(rows["_budget"].unique())).items():
        item, right = optima.get(budget), (0.0, 0.0)
        for number, here in rows[rows["_budget"] == budget].groupby(point):
            at = float(here[spec.best].iloc[0])
            hollow = item is None or not item["range"][0] <= at <= item["range"][1]
            right = max(right, (at, means[number].value))
            face = "white" if hollow else colour
            axes.plot(
                at, means[number].value, "o", color=colour, markerfacecolor=face, markersize=3.4, zorder=4
            )
        ends.append((*right, _named(equal, budget), colour))
        if item is None:
            continue
        width = np.geomspace(item["range"][0], item["range"][1], 60)
        height = np.exp(np.polyval(item["parabola"], np.log(width)))
        axes.plot(width, height, color=colour, linewidth=1.2, zorder=3)
        diamond(axes, item["x"], item["best"], "black", hollow=item["edge"], markersize=5.5)
        ends[-1] = (width[-1], height[-1], *ends[-1][2:])
    common.axis_scale(axes, "x", label(spec.best), rows[spec.best], log=True)
    common.error_scale(
        axes, spec.y, float(min(m.value for m in means.values())), float(max(m.value for m in means.values()))
    )
    if ends:
        common.make_room(axes, [name for *_, name, _ in ends])
        name_ends(axes, ends, [(item["x"], item["best"]) for item in optima.values()])
    return rows.drop(columns=["_budget", "_y"])


def _named(equal: str, value: float) -> str:
    """`320G`, `Nsup 4`: what the runs of a curve have in common."""
    symbol, text = noun(equal).rsplit(" ", 1)[-1], compact(float(f"{value:.2g}"))
    return f"{symbol} {text}" if symbol in SYMBOLS else text


def name_ends(
    axes: Axes, ends: list[tuple[float, float, str, Any]], optima: list[tuple[float, float]]
) -> None:
    """Names right of the ends of curves (x, y, name, colour), shifted where they would lie on a name or a diamond."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    figure, grid = axes.get_figure(root=True), axes.get_gridspec()
    assert figure is not None
    assert grid is not None
    step = 1.25 * common.SMALL / 72 / (0.68 * figure.get_figheight() / grid.nrows) * np.log(high / low)
    letter = 0.7 * common.SMALL / 72 / common.panel_width(axes) * np.log(right / left)
    placed = [(np.log(x) - letter, np.log(x) + letter, np.log(y)) for x, y in optima]
    for x, y, name, colour in sorted(ends, key=lambda end: -end[1]):
        begin, end, at = np.log(x), np.log(x) + letter * len(name), np.log(y)
        beside = [height for other, until, height in placed if begin < until and other < end]
        shifts = sorted(np.arange(-4, 4.5, 0.25), key=abs)
        at += step * next((n for n in shifts if all(abs(h - at - n * step) >= step for h in beside)), 0)
        placed.append((begin, end, at))
        style = {"color": colour, "va": "center", "fontweight": "bold"}
        common.note(axes, name, (x, float(np.exp(at))), (4, 0), **style)


def _nearest(cost: np.ndarray, budgets: list[float]) -> np.ndarray:
    """The budget that each run belongs to [N]; NaN: none within 20 %."""
    if not budgets:
        return np.full(len(cost), np.nan)
    ratios = np.abs(np.log(cost[:, None] / np.array(budgets)))
    best = np.array(budgets)[ratios.argmin(axis=1)]
    return np.where(ratios.min(axis=1) < 0.2, best, np.nan)


def diamond(axes: Axes, x: float, y: float, colour: Any, *, hollow: bool, **style: Any) -> None:
    face = "white" if hollow else colour
    axes.plot(x, y, "D", color=colour, markerfacecolor=face, zorder=6, **{"markersize": 4.5, **style})


def growth(
    axes: Axes, group: Mapping[str, Any], key: str, column: str, over: str, colour: str = "black"
) -> None:
    """The best value of a column, or the metric there (`best`), against another column, log-log. The largest is hollow
    where it is held against the prediction of the others, a bar. A line that no law claims is dotted."""
    optima = group.get("optima", [])
    if not optima:
        common.absent(axes, "no optimum: " + group["error"])
        return
    law, inside = group.get("laws", {}).get(key), [item for item in optima if not item["edge"]]
    out = (law or {}).get("held_out")
    for item in optima:
        if item[f"{key}_interval"]:
            axes.plot([item["second"]] * 2, item[f"{key}_interval"], color=colour, linewidth=1.1, zorder=4)
        last = bool(out) and item is inside[-1]
        diamond(axes, item["second"], item[key], colour, hollow=item["edge"] or last)
    claimed = followed(group, key)
    if out or claimed:
        fitted = inside[:-1] if out else inside
        at = np.log([item["second"] for item in fitted])
        line = np.polyfit(at, np.log([item[key] for item in fitted]), 1)
        dotted: dict[str, Any] = {"color": colour, "linestyle": ":", "linewidth": 1.3, "zorder": 3}
        own = dotted | {"linestyle": "-", "linewidth": 1.1} if claimed else dotted
        axes.plot(np.exp(at), np.exp(np.polyval(line, at)), **own)
    if out:
        far = np.array([at[-1], np.log(out["second"])])
        axes.plot(np.exp(far), np.exp(np.polyval(line, far)), **dotted)
        if out["interval"]:
            width: dict[str, Any] = {"linewidth": 5, "alpha": 0.22, "solid_capstyle": "butt", "zorder": 2}
            axes.plot([out["second"]] * 2, out["interval"], color=colour, **width)
    common.axis_scale(axes, "x", label(over), np.array([item["second"] for item in optima]), log=True)
    common.axis_scale(axes, "y", label(column), np.array([item[key] for item in optima]), log=True)
