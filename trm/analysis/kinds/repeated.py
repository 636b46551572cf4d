"""`repeated`: the repeated-data law, that is, what an augmented copy is worth in fresh puzzles."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from trm.analysis.kinds import law
from trm.analysis.labels import Label
from trm.analysis.laws import supported
from trm.analysis.lazy import Axes, Table, common, np, pd
from trm.analysis.specs import Figure, FitSpec

SOURCES = ("data_size", "augmentation")
"""Experiments fitted together."""
X, SECOND = "data.train_puzzles", "data.augmentations"


class Spec(Figure):
    """Error against effective data U + U R*(1 - exp(-R/R*)) over several experiments (Muennighoff et al. 2023)."""

    kind: Literal["repeated"] = "repeated"
    reading: ClassVar[str] = "all points against effective data fall on one line if the law holds"

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        law = FitSpec(experiments=SOURCES, form="repeated_data", x=X, second=SECOND, where=self.where)
        return (law,)

    def experiments(self, experiment: str) -> tuple[str, ...]:
        return SOURCES


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """Left: error against effective data, all experiments on one curve. Right: what copies are worth."""
    rows = common.merge(tables, SOURCES).select(spec.where, [X, SECOND], plain=True)
    fit = common.fit_of(fits, spec.fits("")[0])
    group = fit["groups"][0]
    form = group["forms"]["repeated_data"] if supported(group) else None
    figure, axes = common.panels(2 if form else 1, 3.0)
    x = effective(rows[X], rows[SECOND], form)
    shades, _, span = law.marks(axes[0], rows, x, X, fit)
    caption = (
        "Every grid point of the experiments at its effective number of puzzles D′ = U + U R*(1 − exp(−R/R*)), "
        "U unique puzzles with R augmented copies each (Muennighoff et al. 2023). "
    )
    if form:
        values = form["parameters"]
        places = np.geomspace(x.min(), 4 * x.max(), 100)
        law.line(axes[0], places, values["E"] + values["A"] * places ** -values["a"], x.max(), "black")
        _worth(axes[1], rows[SECOND].to_numpy(float), form)
        caption += "Right: how many fresh puzzles the copies of one are worth; ribbon: the interval of R*. "
    name = "effective puzzles D′" if form else "training puzzles, every copy counted"
    common.axis_scale(axes[0], "x", Label(name, log=True), x)
    common.error_scale(axes[0], "error", *span)
    common.hue_legend(figure, X, shades, columns=6)
    return law.drawing(
        figure,
        rows,
        fit,
        caption,
        title="Unique and repeated data, one law",
        lines=law.parameters(group, "$e = E + A\\,D'^{-a}$", "a", "R*"),
    )


def effective(unique: pd.Series, repeats: pd.Series, form: dict[str, Any] | None) -> np.ndarray:
    """D' of every row; without a law, every copy counted as a fresh puzzle."""
    copies = repeats.to_numpy(float)
    if form is not None:
        worth = form["parameters"]["R*"]
        copies = worth * (1 - np.exp(-copies / worth))
    return np.asarray(unique.to_numpy(float) * (1 + copies))


def _worth(axes: Axes, repeats: np.ndarray, form: dict[str, Any]) -> None:
    """Fresh puzzles that R copies of one are worth."""
    most, blue = max(1.0, repeats.max()), common.OKABE_ITO[0]
    copies = np.linspace(0, most, 200)

    def curve(worth: float) -> np.ndarray:
        return worth * (1 - np.exp(-copies / worth))

    worth, bounds = form["parameters"]["R*"], form["intervals"]["R*"]
    axes.plot(copies, copies, color=common.GREY, linewidth=0.9, linestyle=":")
    common.note(axes, "a copy worth a fresh puzzle", (most * 0.5, most * 0.5), ha="right")
    axes.fill_between(copies, curve(bounds[0]), curve(bounds[1]), color=blue, alpha=0.14, linewidth=0)
    axes.plot(copies, curve(worth), color=blue)
    axes.set_ylim(0, 1.25 * curve(bounds[1]).max())
    common.axis_scale(axes, "x", Label("augmented copies R of each puzzle"), log=False)
    common.axis_scale(axes, "y", Label("worth in fresh puzzles"), log=False)
    common.heading(axes, "What copies are worth")
