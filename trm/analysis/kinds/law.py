"""`law`: a metric against one variable, log-log, with the fitted law if the points support one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from trm.analysis.labels import FORM_NAMES, label
from trm.analysis.laws import LINE, Fit, Group, chosen, equation, findings_of_fit, supported, why_not
from trm.analysis.lazy import Axes, Table, common, np, pd, stats
from trm.analysis.specs import SAME, Column, Figure, FitSpec, Form, Fraction, Metric, Reported
from trm.analysis.words import count, listed, noun, sentence


class Spec(Figure):
    """Seeds, means and intervals; the law with its ribbon, extrapolation and equation."""

    kind: Literal["law"] = "law"
    reading: ClassVar[str] = (
        "error against the variable on logarithmic axes: a straight line is a power law; a bend is its "
        "floor; dotted is extrapolated"
    )
    x: Column
    y: Metric = "error"
    hue: Column | None = None
    """One colour, and one fit, for each value."""
    fit: Form | Literal["auto"] = "auto"
    """Law to fit."""
    envelope: bool = False
    """Fit the law along the lower envelope of all colours (the best error for any x), not one law for each colour."""
    also: tuple[Column, ...] = ()
    """Other variables in which the same runs are fitted; the sentence says in which of them a law holds."""
    reported: tuple[Reported, ...] = ()
    target: Fraction | None = None
    """Accuracy whose price in `x` is read off the law."""
    sources: tuple[str, ...] = ()
    """Experiments shown together (with `hue: experiment`, one law each); empty: the figure's own."""

    def experiments(self, experiment: str) -> tuple[str, ...]:
        return self.sources or (experiment,)

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        keys = {key: getattr(self, key) for key in ("y", "where", "target")}
        keys |= {"best": True} if self.envelope else {"hue": self.hue}
        sources = self.experiments(experiment)
        return tuple(FitSpec(experiments=sources, form=self.fit, x=x, **keys) for x in (self.x, *self.also))


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    table = common.merge(tables, spec.experiments(tables[0].experiment))
    known = [common.fit_of(fits, wanted) for wanted in spec.fits(table.experiment)]
    fit = known[0]
    own = common.with_hue(spec, table, spec.x)
    spec = own if spec.envelope else spec.model_copy(update={"hue": fit["hue"]})
    figure, axes = common.canvas(common.ONE, 3.0)
    rows = panel(axes[0, 0], spec, table, fit)
    common.hue_legend(figure, spec.hue, {}, axes[0, 0].get_legend_handles_labels()[0])
    return common.Drawing(
        figure,
        rows,
        title=title_of(spec),
        caption=CAPTION + fit_caption(fit),
        findings=[finding for item in known for finding in findings_of_fit(item)],
        lines=subtitle(fit, spec.x, spec.y),
        carried=sum(group["runs"] for group in fit["groups"]),
    )


def title_of(spec: Any) -> str:
    """`Error against unique training puzzles`."""
    return sentence(f"{noun(spec.y)} against {noun(spec.x)}")


def subtitle(fit: Fit, x: str, y: str) -> str:
    """The equation, or why there is none."""
    if len(fit["groups"]) > 1:
        text = "fitted separately for each colour; a line only where the points support a law"
        return common.wrap(text, LINE)
    group = fit["groups"][0]
    return equation(group, x, y) if supported(group) else common.wrap("no law: " + why_not(group), LINE)


CAPTION = "Faint: seeds; strong: geometric means; grey: interval of the test set. "


REACH = 4.0
"""A law is drawn dotted this far beyond the data."""


def fit_caption(fit: Fit) -> str:
    """What was left out of a law of one variable, and which forms its band spans."""
    held = [group for group in fit["groups"] if supported(group)]
    return f"{spanned(held)}{left_out(fit)}"


def left_out(fit: Fit) -> str:
    """How many runs are not fitted, and why."""
    reasons = Counter(str(item["why"]) for group in fit["groups"] for item in group["exclusions"])
    parts = [f"{count(n, 'run')} ({why})" for why, n in reasons.items()]
    return f"Left out: {listed(parts)}." if parts else ""


def spanned(groups: Sequence[Group]) -> str:
    """Which forms the bands span, if more than the law itself."""
    names = {name for group in groups for name in group.get("spanned", ()) if name != group["chosen"]}
    forms = listed([FORM_NAMES[name] for name in FORM_NAMES if name in names])
    return f"Band: also {forms}. " if names else ""


def panel(axes: Axes, spec: Any, table: Table, fit: Fit) -> pd.DataFrame:
    """Draw one law into `axes`; returns the rows shown. `scaling_laws` draws its panels by it, too. `spec`: with the
    hue of its fit."""
    rows: pd.DataFrame = common.rows_of(table, spec.where, spec.y, spec.x, spec.hue)
    x = rows[spec.x].to_numpy(float) + label(spec.x).offset
    y = common.positive(rows, spec.y)
    keep: np.ndarray = (x > 0) & (y > 0)
    rows, x = rows.loc[keep], x[keep]
    shades, (low, high) = marks(axes, rows, x, spec.hue, fit, spec.y)
    for group in fit["groups"]:
        if supported(group):
            colour = "black" if spec.envelope else shades[group["hue"] if spec.hue else None]
            _curve(axes, group, colour, 1.0 if spec.y == "error" else np.inf)
    for point in spec.reported:
        axes.plot(point.x, point.y, "*", color=common.GREY, markersize=9, zorder=5)
        common.note(axes, common.plain(point.label), (point.x, point.y), (-6, 3), ha="right")
        low, high = min(low, point.y), max(high, point.y)
    axes.set_xscale("log" if label(spec.x).log else "linear")
    common.axis_scale(axes, "x", label(spec.x), x)
    if label(spec.y).log:
        common.error_scale(axes, spec.y, low, high)
    else:
        common.axis_scale(axes, "y", label(spec.y), np.array([low, high]))
    return rows


def marks(
    axes: Axes, rows: pd.DataFrame, x: np.ndarray, hue: str | None, fit: Fit, metric: str = "error"
) -> tuple[dict[Any, str], tuple[float, float]]:
    """Seeds and means at places x [N], one colour for each value of `hue`; hollow if the fit excludes all of a point.

    Returns:
        The colours; the range to show.
    """
    is_error = metric == "error"
    rows = rows.assign(_x=x, _y=common.positive(rows, metric))
    rows["_point"] = rows.groupby([name for name in SAME if name in rows], dropna=False).ngroup()
    means = stats.pooled_log_intervals(
        rows["_y"].to_numpy(), rows["_point"].to_numpy(), most=1.0 if is_error else np.inf
    )
    items = [item for group in fit["groups"] for item in group["exclusions"]]
    rows["_out"] = rows["run"].isin([item["run"] for item in items])
    if items and len(items[0]["x"]) == 1:  # a run may have a row for each evaluation setting
        out = {(item["run"], item["x"][0]) for item in items}
        rows["_out"] = [pair in out for pair in zip(rows["run"], x)]
    parts = common.groups(rows, hue)
    shades = common.colours(list(parts))
    span = float(np.log(x.max() / x.min())) or 1.0
    low, high = float(rows["_y"].min()), float(rows["_y"].max())
    for index, (value, part) in enumerate(parts.items()):
        marker, colour = common.MARKERS[index % 8], shades[value]
        for key, here in part.groupby("_point", sort=True):
            mean, place = means[key], float(here["_x"].iloc[0])
            if is_error:
                tested = float(here["puzzles"].iloc[0])
                bounds = common.binomial_bar(axes, place, mean.value, tested)
                low, high = min(low, max(bounds[0], 0.25 / tested)), max(high, bounds[1])
            if mean.bounds:
                low, high = min(low, mean.bounds[0]), max(high, mean.bounds[1])
            beside, hollow = place * np.exp(-0.012 * span), bool(here["_out"].all())
            style: dict[str, Any] = {"seeds_at": beside, "summary": mean, "hollow": hollow}
            common.seed_marks(axes, place, here["_y"], colour, marker, **style)
        if hue:
            common.entry(axes, common.hue_name(hue, value), marker=marker, color=colour)
    return shades, (low, high)


def _curve(axes: Axes, group: Group, colour: str, most: float) -> None:
    """The stored law with its ribbon, to REACH times beyond the data."""
    curve, end = chosen(group)["curve"], group["range"][0][1]
    x, y, low, high = (np.array(curve[key], float) for key in ("x", "y", "low", "high"))
    shown = x <= end * REACH * (1 + 1e-9)
    low, high = np.minimum(low[shown], most), np.minimum(high[shown], most)
    line(axes, x[shown], y[shown], end, colour, most)
    axes.fill_between(x[shown], low, high, color=colour, alpha=0.14, linewidth=0, zorder=1)


def line(axes: Axes, x: np.ndarray, y: np.ndarray, end: float, colour: str, most: float = 1.0) -> None:
    """A law at places x, solid up to `end` and dotted beyond, cut off at `most`."""
    y = np.minimum(y, most)
    inside, beyond = x <= end * (1 + 1e-9), x >= end * (1 - 1e-9)
    axes.plot(x[inside], y[inside], color=colour, linewidth=1.2, zorder=3)
    axes.plot(x[beyond], y[beyond], color=colour, linestyle=":", linewidth=1.3, zorder=3)
