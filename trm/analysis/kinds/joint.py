"""`joint`: error against training FLOPs for several sizes, with one law of both, E + A N^-a + B C^-b."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trm.analysis.kinds import law
from trm.analysis.labels import label
from trm.analysis.lazy import common, np, stats
from trm.analysis.specs import Column, Figure, FitSpec
from trm.analysis.words import compact, listed, percent, thing

if TYPE_CHECKING:
    from trm.analysis.tables import Table


class Spec(Figure):
    """One colour a size; the law's curve at each size and the lower envelope of the means (Hoffmann et al. 2022)."""

    kind: Literal["joint"] = "joint"
    reading: ClassVar[str] = "one curve a size; the fitted surface joins them"
    x: Column = "parameters"
    second: Column = "train_flops"

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        law_of_both = FitSpec(
            experiments=(experiment,), form="joint", x=self.x, second=self.second, where=self.where
        )
        return (law_of_both,)


def joint_sentence(group: Mapping[str, Any], x: str = "parameters", second: str = "train_flops") -> str:
    """How the error falls in parameters and in compute."""
    both = f"{thing(x)} and {thing(second)}"
    if "forms" not in group:
        return f"No joint law of {both} could be fitted: {group['error']}."
    if group["doubts"]:
        return f"No joint law of {both} is claimed: {listed(group['doubts'])}."
    form = group["forms"]["joint"]
    text = (
        f"The reducible error falls with the power {law.exponent(form)} of {thing(x)} and {law.exponent(form, 'b')} of "
        f"{thing(second)}"
    )
    if not law.floor_shown(dict(group)):
        return f"{text}; a floor is not shown (its interval includes 0)."
    return f"{text}, towards a floor of {percent(form['parameters']['E'], form['intervals'].get('E'))}."


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """One panel."""
    from trm.analysis.tables import plain

    table = tables[0]
    rows = plain(table.select(spec.where, [spec.x, spec.second]))
    group = common.fit_of(fits, spec.fits(table.experiment)[0])["groups"][0]
    figure, axes = common.canvas(common.ONE, 3.1)
    axis = axes[0, 0]
    cost = rows[spec.second].to_numpy(float)
    shades, means = law.marks(axis, rows, cost, spec.x, spec.second, group)
    if law.supported(group):
        values = group["forms"]["joint"]["parameters"]
        for size, colour in shades.items():
            here = cost[(rows[spec.x] == size).to_numpy()]
            places = np.geomspace(here.min(), 4 * here.max(), 60)
            error = (
                values["E"] + values["A"] * float(size) ** -values["a"] + values["B"] * places ** -values["b"]
            )
            law.line(axis, places, error, here.max(), colour)
    best = means[stats.frontier(means[:, 0], means[:, 1], higher_is_better=False)]
    style = {"color": "black", "lw": 0.9, "ls": ":", "ds": "steps-post"}
    handles = [
        common.entry(axis, compact(float(size)), marker=common.MARKERS[i % 8], color=colour)
        for i, (size, colour) in enumerate(shades.items())
    ]
    handles += axis.plot(best[:, 0], best[:, 1], label="envelope", **style)
    common.axis_scale(axis, "x", label(spec.second), cost)
    common.legend(figure, handles, 4, label(spec.x).name)
    fit = {"groups": [group]}
    return common.Drawing(
        figure,
        rows,
        title="Parameters and compute, one law",
        lines=law.parameters(group, "$e = E + A\\,N^{-a} + B\\,C^{-b}$", "a", "b"),
        caption="Lines: the joint law at each size. Dotted: best mean at any price. "
        + law.CAPTION
        + law.fit_caption(fit),
        sentence=joint_sentence(group, spec.x, spec.second),
        strength=law.strength(fit),
        numbers={"fit": law.summary(fit)},
    )
