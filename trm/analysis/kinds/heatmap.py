"""`heatmap`: a metric over two variables; optionally the best x for each y and its power law."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from trm.analysis.findings import Contrast, Finding, compared, contrast
from trm.analysis.kinds import isoflop
from trm.analysis.labels import label
from trm.analysis.laws import findings_of_fit
from trm.analysis.lazy import Axes, Table, common, mpl, np, pd
from trm.analysis.specs import Column, Figure, FitSpec, Metric, minimised
from trm.analysis.words import noun, number, sentence, setting_in_words, value_name

TUNED = "training.lr"
"""What is tuned for each value of the other variable: no finding rests on a rate that nobody would choose."""


class Spec(Figure):
    """Means with half the width of their intervals, one map for each value of `hue`."""

    kind: Literal["heatmap"] = "heatmap"
    reading: ClassVar[str] = "brighter is better; the number in a cell is the mean over seeds"
    x: Column
    y: Column
    z: Metric = "exact_accuracy"
    hue: Column | None = None
    """One map for each value."""
    optimum: bool = False
    """Also the best `x` for each `y` with its power law (learning rate against batch size)."""

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        if not self.optimum:
            return ()
        keys: dict[str, Any] = {"x": self.x, "second": self.y, "y": self._fitted, "where": self.where}
        return (FitSpec(experiments=(experiment,), form="optimum", **keys),)

    @property
    def _fitted(self) -> str:
        return "error" if self.z == "exact_accuracy" else self.z

    @model_validator(mode="after")
    def _lowest(self) -> Spec:
        if self.optimum:
            minimised(self._fitted)
        return self


def best_of(parts: Mapping[Any, pd.DataFrame], spec: Spec) -> list[Finding]:
    """The best cell of each map against its others; beside learning rates, only the best of each row or column. Tested
    are all pairs of cells, as the results choose the best. parts: hue -> rows."""
    contrasts: dict[Any, Contrast] = {}
    shown: list[Any] = []
    for hue, rows in parts.items():
        groups = rows.groupby([spec.x, spec.y], dropna=False, sort=True)
        cells = {at: part.groupby("seed")[spec.z].mean() for at, part in groups}
        ranked: list[Any] = sorted(cells, key=lambda at: cells[at].mean(), reverse=label(spec.z).lower)
        best = ranked[-1]
        against = f"the best pair ({value_name(best[0], spec.x)}/{value_name(best[1], spec.y)})"
        where = setting_in_words(spec.hue, hue) if spec.hue else ""
        for worse, better in combinations(ranked, 2):
            subject = f"{setting_in_words(spec.x, worse[0])} and {setting_in_words(spec.y, worse[1])}"
            contrasts[hue, worse, better] = contrast(cells[better], cells[worse], subject, against, where)
        tuned = {at[spec.x == TUNED] if TUNED in (spec.x, spec.y) else at: at for at in ranked}
        shown += [(hue, at, best) for at in ranked[:-1] if at in tuned.values()]
    found = compared(spec.z, contrasts)
    return [found[key] for key in shown]


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """One map for each hue value, all on one colour scale; the optima in a further panel."""
    table = tables[0]
    spec = common.with_hue(spec, table, spec.x, spec.y)
    rows = common.rows_of(table, spec.where, spec.z, spec.x, spec.y, spec.hue)
    alike = {hue: table.alike(part, spec.x, spec.y) for hue, part in common.groups(rows, spec.hue).items()}
    parts = {hue: part for hue, (part, _) in alike.items()}
    xs, ys = common.ordered(rows[spec.x]), common.ordered(rows[spec.y])
    found = spec.fits(table.experiment)
    fit = common.fit_of(fits, found[0]) if found else None
    width = max(2.9, 1.35 + 0.62 * len(xs)) * len(parts) + (3.2 if fit else 0) + 0.7
    figure, axes = common.canvas(
        max(common.ONE, width), max(2.4, 1.1 + 0.5 * len(ys)), 1, len(parts) + bool(fit)
    )
    maps = {hue: _cells(part, spec, xs, ys) for hue, part in parts.items()}
    norm = scale_of([centre for centre, _ in maps.values()], log=label(spec.z).log)
    for axis, (hue, cells) in zip(axes[0], maps.items()):
        image = _map(axis, cells, spec, xs, ys, norm)
        if spec.hue:
            common.heading(axis, common.wrap(common.plain(setting_in_words(spec.hue, hue)), 30))
    bar = figure.colorbar(image, ax=list(axes[0, : len(parts)]), shrink=0.9, pad=0.02)
    bar.outline.set_visible(False)
    if label(spec.z).log:
        bar.minorlocator = mpl.ticker.NullLocator()
        bar.locator = mpl.ticker.FixedLocator(common.nice(norm.vmin, norm.vmax))
        bar.formatter = mpl.ticker.FuncFormatter(lambda value, _: number(value, 2))
    else:
        bar.locator = mpl.ticker.MaxNLocator(5, steps=[1, 2, 5, 10])
    bar.set_label(common.wrap(label(spec.z).axis, 26))
    if label(spec.z).percent:  # of shares
        bar.formatter = mpl.ticker.FuncFormatter(lambda value, _: common.shown(label(spec.z), value))
    bar.update_ticks()
    findings = best_of(parts, spec)
    caption = "Each cell: mean over seeds ± half of its 95 % interval. The colours span the means."
    if fit:
        isoflop.growth(axes[0, -1], fit["groups"][0], "x", spec.x, spec.y)
        common.heading(axes[0, -1], sentence(f"best {noun(spec.x)}"))
        findings = [*findings_of_fit(fit), *(replace(item, counts=False) for item in findings)]
        caption += " Right: the best value, hollow at the edge."
    return common.Drawing(
        figure,
        rows,
        title=sentence(f"{noun(spec.z)} by {noun(spec.x)} and {noun(spec.y)}"),
        caption=caption,
        findings=findings,
        remarks=" ".join(dict.fromkeys(lost for _, lost in alike.values())),
    )


def scale_of(means: Sequence[np.ndarray], *, log: bool) -> Any:
    """One colour scale for all maps, from the least to the largest mean; logarithmic where the metric's axis is."""
    values = np.concatenate([centre.ravel() for centre in means])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if log and low > 0:
        return mpl.colors.LogNorm(low, max(high, low * 1.01))
    return mpl.colors.Normalize(low, high if high > low else low + 0.01)


def _cells(rows: pd.DataFrame, spec: Spec, xs: list[Any], ys: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Means and half widths [y, x]; NaN if nothing was run."""
    centre, half = np.full((2, len(ys), len(xs)), np.nan)
    for i, y in enumerate(ys):
        for j, x in enumerate(xs):
            here = rows[common.is_value(rows[spec.x], x) & common.is_value(rows[spec.y], y)]
            puzzles = float(here["puzzles"].iloc[0]) if len(here) else 0.0
            summary = common.mean_of(here.groupby("seed")[spec.z].mean(), spec.z, puzzles)
            centre[i, j] = summary.value
            if summary.bounds:
                half[i, j] = (summary.bounds[1] - summary.bounds[0]) / 2
    return centre, half


def _map(
    axes: Axes, cells: tuple[np.ndarray, np.ndarray], spec: Spec, xs: list[Any], ys: list[Any], norm: Any
) -> Any:
    """The map with each cell's mean over half its interval's width; returns what the colour bar shows."""
    import seaborn as sns

    def written(value: float, width: float) -> str:
        share = label(spec.z).percent
        head = f"{100 * value:.1f}" if share else number(value)
        return head + (f"\n±{100 * width:.1f}" if share else f"\n±{number(width, 2)}") * bool(
            np.isfinite(width)
        )

    centre, half = cells
    texts = [[written(*pair) for pair in zip(*row)] for row in zip(centre.tolist(), half.tolist())]
    names = {
        "xticklabels": [common.wrap(common.plain(value_name(x, spec.x)), 10) for x in xs],
        "yticklabels": [common.wrap(common.plain(value_name(y, spec.y)), 16) for y in ys],
    }
    size = {"fontsize": common.SMALL, "linespacing": 1.1}
    sns.heatmap(
        centre,
        ax=axes,
        norm=norm,
        cmap="cividis_r" if label(spec.z).lower else "cividis",
        annot=texts,
        fmt="",
        annot_kws=size,
        cbar=False,
        **names,
    )
    axes.invert_yaxis()
    axes.set_facecolor("#f0f0f0")
    axes.set_xlabel(label(spec.x).axis)
    axes.set_ylabel(label(spec.y).axis)
    axes.tick_params(length=0, labelrotation=0)
    return axes.collections[0]
