"""`surface`: error against one variable at several values of another, with one law of both."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

from trm.analysis.kinds import law
from trm.analysis.labels import label
from trm.analysis.laws import Group, chosen, findings_of_fit, floor_shown, parameter, supported, why_not
from trm.analysis.lazy import Table, common, np
from trm.analysis.specs import VARIABLES, Figure, FitSpec, Surface
from trm.analysis.words import estimate, measured


class Look(NamedTuple):
    """How a law is shown."""

    title: str
    formula: str
    exponents: tuple[str, str]
    x: str
    hue: str
    sources: tuple[str, ...] = ()
    """Experiments fitted together; empty: the figure's own."""


LOOKS = {
    "joint": Look(
        "Parameters and compute, one law",
        "$e = E + A\\,N^{-a} + B\\,C^{-b}$",
        ("a", "b"),
        "train_flops",
        "parameters",
    ),
    "repeated_data": Look(
        "Unique and repeated data, one law",
        "$e = E + A\\,D'^{-a}$,  $D' = U + U R^* (1 - e^{-R/R^*})$",
        ("a", "R*"),
        "data.augmentations",
        "data.train_puzzles",
        ("data_size", "augmentation"),
    ),
}


class Spec(Figure):
    """One colour a size or number of puzzles, and the law at each (Hoffmann et al. 2022, Muennighoff et al. 2023)."""

    kind: Literal["surface"] = "surface"
    reading: ClassVar[str] = "one law of both variables goes through the points of every colour if it holds"
    form: Surface = "joint"
    """The law: of parameters and compute, or of unique puzzles and their copies over two experiments."""

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        x, second = VARIABLES[self.form]
        keys: dict[str, Any] = {"form": self.form, "x": x, "second": second, "where": self.where}
        return (FitSpec(experiments=self.experiments(experiment), **keys),)

    def experiments(self, experiment: str) -> tuple[str, ...]:
        return LOOKS[self.form].sources or (experiment,)


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    table = common.merge(tables, spec.experiments(tables[0].experiment))
    fit = common.fit_of(fits, spec.fits(table.experiment)[0])
    group, look = fit["groups"][0], LOOKS[spec.form]
    rows = table.select(spec.where, VARIABLES[spec.form], plain=True)
    offset = label(look.x).offset
    x = rows[look.x].to_numpy(float) + offset
    figure, axes = common.canvas(common.ONE, 3.1)
    axis = axes[0, 0]
    shades, span = law.marks(axis, rows, x, look.hue, fit)
    for value, colour in shades.items() if supported(group) else ():
        here = x[(rows[look.hue] == value).to_numpy()]
        places = np.geomspace(here.min(), law.REACH * here.max(), 60)
        at = {look.x: places - offset, look.hue: np.full_like(places, value)}
        law.line(axis, places, error_at(group, at), here.max(), colour)
    common.axis_scale(axis, "x", label(look.x), x)
    common.error_scale(axis, "error", *span)
    common.hue_legend(figure, look.hue, {}, axis.get_legend_handles_labels()[0], columns=4)
    return common.Drawing(
        figure,
        rows,
        title=look.title,
        caption=law.CAPTION + law.left_out(fit),
        findings=findings_of_fit(fit),
        lines=_parameters(group, look),
        carried=group["runs"],
    )


def error_at(group: Group, at: dict[str, np.ndarray]) -> np.ndarray:
    """The law of a group at the variables' values [N]."""
    from trm.analysis.fits.forms import FORMS

    form, values = FORMS[group["chosen"]], chosen(group)["parameters"]
    x = np.stack([at[column] for column in VARIABLES[group["chosen"]]])
    phi = np.log([values[name] for name in form.parameters])
    return np.asarray(np.exp(form.log_value(phi[None], x)[0]))


def _parameters(group: Group, look: Look) -> str:
    """The formula and its parameters, or why no law is claimed."""
    if not supported(group):
        return common.wrap("no law: " + why_not(group), 72)
    parts = [f"{key} = {estimate(*parameter(group, key))}" for key in look.exponents]
    floor = "E not established (its interval includes 0)"
    if floor_shown(group):
        floor = f"E = {measured('error', *parameter(group, 'E'))}"
    return f"{look.formula}\n" + ",  ".join([*parts, floor])
