"""`joint`: error against training FLOPs for several sizes, with one law of both, E + A N^-a + B C^-b."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from trm.analysis.kinds import law
from trm.analysis.labels import label
from trm.analysis.laws import supported
from trm.analysis.lazy import Table, common, np
from trm.analysis.specs import Figure, FitSpec

X, SECOND = "parameters", "train_flops"


class Spec(Figure):
    """One colour a size; the law's curve at each size and the lower envelope of the means (Hoffmann et al. 2022)."""

    kind: Literal["joint"] = "joint"
    reading: ClassVar[str] = "one curve a size; the fitted surface joins them"

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        law_of_both = FitSpec(experiments=(experiment,), form="joint", x=X, second=SECOND, where=self.where)
        return (law_of_both,)


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    table = tables[0]
    rows = table.select(spec.where, [X, SECOND], plain=True)
    fit = common.fit_of(fits, spec.fits(table.experiment)[0])
    group = fit["groups"][0]
    figure, axes = common.canvas(common.ONE, 3.1)
    axis = axes[0, 0]
    cost = rows[SECOND].to_numpy(float)
    shades, means, span = law.marks(axis, rows, cost, X, fit)
    if supported(group):
        values = group["forms"]["joint"]["parameters"]
        for size, colour in shades.items():
            here = cost[(rows[X] == size).to_numpy()]
            places = np.geomspace(here.min(), 4 * here.max(), 60)
            by_size, by_cost = values["A"] * float(size) ** -values["a"], values["B"] * places ** -values["b"]
            law.line(axis, places, values["E"] + by_size + by_cost, here.max(), colour)
    law.envelope(axis, means)
    common.axis_scale(axis, "x", label(SECOND), cost)
    common.error_scale(axis, "error", *span)
    common.hue_legend(figure, X, {}, axis.get_legend_handles_labels()[0], columns=4)
    return law.drawing(
        figure,
        rows,
        fit,
        "Lines: the joint law at each size. Dotted: best mean at any price. ",
        title="Parameters and compute, one law",
        lines=law.parameters(group, "$e = E + A\\,N^{-a} + B\\,C^{-b}$", "a", "b"),
    )
