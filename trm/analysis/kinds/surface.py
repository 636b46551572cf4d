"""`surface`: a law of several variables, that is, of size and compute, of puzzles and copies, or of all three."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from trm.analysis.kinds import law
from trm.analysis.labels import Label, label
from trm.analysis.laws import Group, claims_of_fit, floor_shown, supported, why_not
from trm.analysis.lazy import Axes, Table, common, np, pd
from trm.analysis.specs import VARIABLES, Figure, FitSpec, PredictedRun, Surface
from trm.analysis.words import estimate, listed, measured, number, setting_in_words

SOURCES = ("data_size", "augmentation")
"""Experiments that tell puzzles from copies, fitted together."""


class Look(NamedTuple):
    """How one form is shown."""

    title: str
    formula: str
    exponents: tuple[str, ...]
    views: tuple[tuple[str, str], ...]
    """Variable and colours of each panel."""


LOOKS = {
    "joint": Look(
        "Parameters and compute, one law",
        "$e = E + A\\,N^{-a} + B\\,C^{-b}$",
        ("a", "b"),
        (("train_flops", "parameters"),),
    ),
    "repeated_data": Look(
        "Unique and repeated data, one law",
        "$e = E + A\\,D'^{-a}$,  $D' = U + U R* (1 - e^{-R/R*})$",
        ("a", "R*"),
        (("data.augmentations", "data.train_puzzles"),),
    ),
    "recurring_data": Look(
        "Compute, size and puzzles where every puzzle recurs",
        "",
        (),
        (("train_flops", "data.train_puzzles"), ("train_flops", "parameters")),
    ),
}


class Spec(Figure):
    """One colour a size, or number of puzzles, with the law at each; predictions of held-out and further runs."""

    kind: Literal["surface"] = "surface"
    reading: ClassVar[str] = (
        "one law goes through the points of every colour; right: intervals of what was predicted, stars what came"
    )
    form: Surface = "joint"
    """The law: of size and compute, of puzzles and copies, or of compute, size and puzzles where every puzzle
    recurs."""
    until: Annotated[float, Field(gt=0)] | None = None
    """recurring_data: most training FLOPs of a run that is fitted; larger runs are predicted. Null: fit all."""
    places: tuple[PredictedRun, ...] = ()
    """recurring_data: further runs to predict, as published ones."""

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        x, second, *_ = VARIABLES[self.form]
        keys: dict[str, Any] = {key: getattr(self, key) for key in ("form", "where", "until", "places")}
        return (FitSpec(experiments=self.experiments(experiment), x=x, second=second, **keys),)

    def experiments(self, experiment: str) -> tuple[str, ...]:
        return SOURCES if self.form == "repeated_data" else (experiment,)


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """A panel for each pair of variables, and one for the predictions."""
    table = common.merge(tables, spec.experiments(tables[0].experiment))
    fit = common.fit_of(fits, spec.fits(table.experiment)[0])
    group, look = fit["groups"][0], LOOKS[spec.form]
    rows = table.select(spec.where, VARIABLES[spec.form], plain=True)
    rows = rows[rows["error"].notna()]
    predicted = group.get("places", [])
    figure, axes = common.panels(len(look.views) + bool(predicted), 3.0)
    for axis, (x, hue) in zip(axes, look.views):
        _panel(axis, rows, x, hue, spec.form, fit)
    caption = law.CAPTION + "Lines: the law at the value of each colour, dashed beyond the fitted points. "
    if predicted:
        _predictions(axes[-1], predicted)
        caption += "Right: diamond and line: the average of all forms and its interval; ticks: every form; star: what "
        caption += "was measured. "
    return common.Drawing(
        figure,
        rows,
        title=look.title,
        caption=caption + law.left_out(fit),
        claims=claims_of_fit(fit),
        remarks=_floors(group) if "floors" in group else "",
        lines=_parameters(group, look) if look.formula else "",
        carried=group["runs"],
    )


def _panel(axes: Axes, rows: pd.DataFrame, x: str, hue: str, form: str, fit: Mapping[str, Any]) -> None:
    """The points of one variable, and the law at each value of another, where a third has one value."""
    group, columns, offset = fit["groups"][0], VARIABLES[form], label(x).offset
    fixed = {name: rows.groupby(name)[hue].nunique().idxmax() for name in columns if name not in (x, hue)}
    for name, value in fixed.items():
        rows = rows[rows[name] == value]
        common.heading(axes, setting_in_words(name, value))
    cost = rows[x].to_numpy(float) + offset
    shades, _, span = law.marks(axes, rows, cost, hue, fit)
    for value, colour in shades.items() if supported(group) else ():
        here = cost[(rows[hue] == value).to_numpy()]
        places = np.geomspace(here.min(), law.REACH * here.max(), 80)
        at = {x: places - offset, hue: np.full_like(places, value)}
        at |= {name: np.full_like(places, other) for name, other in fixed.items()}
        end = group["range"][columns.index(x)][1] + offset
        law.line(axes, places, error_at(group, form, np.stack([at[name] for name in columns])), end, colour)
    common.axis_scale(axes, "x", label(x), cost)
    common.error_scale(axes, "error", *span)
    style = {"fontsize": common.SMALL, "title_fontsize": common.SMALL}
    axes.legend(title=label(hue).name, loc="lower left", **style)


def error_at(group: Group, form: str, x: np.ndarray) -> np.ndarray:
    """The law at x [v, N], from the content of fit.json."""
    from trm.analysis.fits.forms import FORMS
    from trm.analysis.fits.recurring import averaged

    if form == "recurring_data":
        return averaged(group["forms"], x)
    values = group["forms"][form]["parameters"]
    phi = np.log([values[name] for name in FORMS[form].parameters])
    return np.asarray(np.exp(FORMS[form].log_value(phi[None], x)[0]))


def _parameters(group: Group, look: Look) -> str:
    """The formula and its parameters, or why no law is claimed."""
    if not supported(group):
        return common.wrap("no law: " + why_not(group), 72)
    form = group["forms"][group["chosen"]]
    values, bounds = form["parameters"], form.get("intervals") or {}
    parts = [f"{key} = {estimate(values[key], bounds.get(key))}" for key in look.exponents]
    floor = "E not established (its interval includes 0)"
    if floor_shown(group):
        floor = f"E = {measured('error', values['E'], bounds.get('E'))}"
    return f"{look.formula}\n" + ",  ".join([*parts, floor])


def _floors(group: Group) -> str:
    """The error that no compute removes, and which forms carry the average."""
    floors = [
        f"{measured('error', item['value'], tuple(item['interval']))} at {number(item['puzzles'])} puzzles"
        for item in group["floors"]
    ]
    best = sorted(group["forms"].items(), key=lambda item: -item[1]["weight"])[:3]
    weights = [f"{name} {100 * item['weight']:.0f} %" for name, item in best]
    return f" Error that no compute removes: {listed(floors)}. Weights of the forms: {listed(weights)}."


def _predictions(axes: Axes, places: Sequence[Mapping[str, Any]]) -> None:
    """One line a place: interval, mean, every form's own value faint, and a star for what was measured."""
    for row, item in enumerate(places):
        axes.plot(item["interval"], [row, row], color=common.OKABE_ITO[0], linewidth=1.6)
        for value in item["forms"].values():
            axes.plot(value, row, "|", color=common.GREY, markersize=6, alpha=0.6)
        axes.plot(item["predicted"], row, "D", color=common.OKABE_ITO[0], markersize=4.5)
        if item["error"] is not None:
            axes.plot(item["error"], row, "*", color=common.OKABE_ITO[1], markersize=9, zorder=5)
    axes.set_yticks(range(len(places)), [common.wrap(item["label"], 18) for item in places])
    axes.set_ylim(len(places) - 0.4, -0.6)
    axes.set_xlim(-0.02, 1.02)
    common.axis_scale(axes, "x", Label("error", percent=True), np.array([0.0, 1.0]), log=False)
    common.heading(axes, "Predicted and measured")
