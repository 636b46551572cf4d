"""`prediction`: a law extrapolated to a stated place, with its interval, against a published number."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from trm.analysis.claims import Claim, verdict_on
from trm.analysis.kinds import law
from trm.analysis.labels import FORM_NAMES, label
from trm.analysis.laws import Group, chosen, law_claim
from trm.analysis.lazy import Table, common, np
from trm.analysis.specs import Column, Figure, FitSpec, Form, Metric, Reported
from trm.analysis.words import listed, measured, noun, number, sentence


class Spec(Figure):
    """The law and its extrapolation: drawn with a warning if the points do not support it, not at all without a
    trend."""

    kind: Literal["prediction"] = "prediction"
    reading: ClassVar[str] = "the diamond is what the law predicts at the star, with its interval"
    x: Column = "train_flops"
    y: Metric = "error"
    hue: None = None
    fit: Form | Literal["auto"] = "auto"
    """Law to fit."""
    reported: tuple[Reported, ...] = Field(min_length=1)
    """Published values; the first is the one predicted."""
    envelope: Literal[False] = False
    extrapolate: Annotated[float, Field(ge=1)] = 1.0
    best: bool = False
    """Fit only the grid points on the lower envelope (the best error for any x)."""

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        keys = {key: getattr(self, key) for key in ("x", "y", "where", "best")}
        return (FitSpec(experiments=(experiment,), form=self.fit, at=self.reported[0].x, **keys),)


def extrapolated(group: Group, spec: Spec) -> Claim:
    """What the law predicts, how far it had to reach, and whether the published value is inside its interval."""
    goal, unit = spec.reported[0], label(spec.x).unit or noun(spec.x)
    published = f"{goal.label}: {measured(spec.y, goal.y)}"
    if "error" in group:
        return law_claim(group, spec.x, spec.y)
    factor = number(goal.x / group["range"][0][1], 2)
    reach = f"{factor} times beyond the data to {number(goal.x)} {unit}"
    if group["chosen"] == "constant":
        more = f"; so nothing is predicted {reach}; {published}"
        return replace(law_claim(group, spec.x, spec.y), more=more)
    at, forms = chosen(group)["at"], [FORM_NAMES[name] for name in group.get("spanned", ())]
    what = f"{listed(forms)} together predict" if len(forms) > 1 else "the law predicts"
    bounds = (at["interval"][0], at["interval"][1]) if at["interval"] else None
    verdict = verdict_on(bounds, goal.y) if bounds else "single"
    doubt = f"; the points do not support the law: {listed(group['doubts'])}" if group["doubts"] else ""
    notes = (
        " The interval holds the seed spread and the forms that fit: another recipe or task would move it."
    )
    subject = f"extrapolated {reach}, {what}"
    fields: dict[str, Any] = {"more": doubt, "notes": notes}
    return Claim(spec.y, subject, published, at["y"], bounds, verdict, "prediction", **fields)


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """One panel: the law's own figure, with the extrapolation dashed as far as the published values."""
    table = tables[0]
    fit = common.fit_of(fits, spec.fits(table.experiment)[0])
    group = fit["groups"][0]
    figure, axes = common.canvas(common.ONE, 3.2)
    axis = axes[0, 0]
    rows = law.panel(
        axis, spec if spec.best else common.with_hue(spec, table, spec.x), table, fit, curves=False
    )
    if "forms" in group:
        form = chosen(group)
        (start, end), at = group["range"][0], form["at"]
        values, bounds = form["parameters"], at["interval"] or ()
        places = np.geomspace(start, max(point.x for point in spec.reported) * 1.3, 200)
        lowest = min(*(point.y for point in spec.reported), *group["means"]["y"])
        if group["chosen"] != "constant":  # without a trend there is nothing to extrapolate
            height = values.get("E", 0.0) + values["A"] * places ** -values["a"]
            law.line(axis, places, height, end, common.OKABE_ITO[0])
            style = {"color": common.OKABE_ITO[1], "zorder": 5}
            axis.plot([at["x"]] * len(bounds), np.clip(bounds, 1e-6, 1.0), linewidth=1.6, **style)
            axis.plot(at["x"], at["y"], "D", markersize=4.5, **style)
            common.note(axis, "predicted", (at["x"], at["y"]), (-6, -9), ha="right", color=style["color"])
            lowest = min(lowest, at["y"], *bounds)
        common.error_scale(axis, spec.y, max(lowest, 1e-4), max(group["means"]["y"]))
        axis.set_xlim(places[0] / 1.5, places[-1] * 1.5)
        common.axis_scale(axis, "x", label(spec.x), np.geomspace(places[0], places[-1], 12))
    return law.drawing(
        figure,
        rows,
        fit,
        "Line: the law, solid over the fitted points, dashed beyond. Diamond: its value at the published point with "
        "the bootstrap's 95 % interval. Stars: published values, not fitted. ",
        title=sentence(f"{noun(spec.y)} extrapolated in {noun(spec.x)}"),
        lines=law.subtitle(fit, spec.x, spec.y),
        claims=[extrapolated(group, spec)],
    )
