"""`scaling_laws`: what the study found, side by side: laws, best choices and restarts. A figure of the whole study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from trm.analysis.claims import Claim
from trm.analysis.kinds import isoflop, law, restarts
from trm.analysis.labels import FORM_NAMES, Label, label
from trm.analysis.laws import Fit, claims_of_fit, slope, supported
from trm.analysis.lazy import Axes, Table, common, np, pd
from trm.analysis.specs import Column, Figure, FitSpec
from trm.analysis.words import estimate, noun, percent, points, sentence
from trm.errors import UserError

TITLE = 42
"""Most characters of a panel's title in one line."""


class Panel(law.Spec):
    """One panel: a law of a named experiment, a best choice at equal compute, or the restart law."""

    experiment: str
    x: Column = "train_flops"
    best: Column | None = None
    """Draw the best value of this column against compute, as the isoflop figure does; panels with it share one."""
    restarts: bool = False
    """Draw what several attempts solve, measured and predicted, as the restarts figure does."""

    def fits(self, experiment: str = "") -> tuple[FitSpec, ...]:
        if self.restarts:
            return ()
        if self.best:
            return isoflop.Spec(best=self.best, y=self.y, where=self.where).fits(self.experiment)
        return law.Spec.fits(self, self.experiment)


class Spec(Figure):
    """Loss on the frontier of compute, the best choices, test-time compute, unique puzzles."""

    kind: Literal["scaling_laws"] = "scaling_laws"
    reading: ClassVar[str] = (
        "what the study found, one panel a finding; dashed: the best rival, or a prediction"
    )
    panels: tuple[Panel, ...] = Field(min_length=1)

    def fits(self, experiment: str = "") -> tuple[FitSpec, ...]:
        found = {fit.model_dump_json(): fit for panel in self.panels for fit in panel.fits()}
        return tuple(found.values())

    def experiments(self, experiment: str = "") -> tuple[str, ...]:
        return tuple(dict.fromkeys(panel.experiment for panel in self.panels))


class Shown(NamedTuple):
    """One panel as drawn."""

    title: str
    lines: str
    rows: pd.DataFrame
    claims: list[Claim]


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """One panel a finding; a panel whose experiment has no table yet says so."""
    chosen = [panel for panel in spec.panels if panel.best]
    cells = [chosen if panel.best else [panel] for panel in spec.panels if panel not in chosen[1:]]
    figure, axes = common.panels(len(cells), 2.85)
    shown, headings = [], []
    for letter, cell, axis in zip("abcdefghijkl", cells, axes):
        try:
            drawn = _cell(axis, cell, tables, fits)
        except UserError as error:
            words = common.wrap(str(error), 34)
            axis.text(0.5, 0.5, words, ha="center", va="center", fontsize=common.SMALL, color=common.MISSING)
            headings.append((axis, f"{letter}  {cell[0].title or cell[0].experiment}", ""))
            axis.set_axis_off()
            continue
        title = common.wrap(f"{letter}  {cell[0].title or drawn.title}", TITLE)
        headings.append((axis, title, drawn.lines))
        shown.append(drawn)
    common.aligned_headings(headings)
    if not shown:
        raise UserError("no panel of scaling_laws has both its table and its fit")
    claims = [claim for drawn in shown for claim in drawn.claims]
    return common.Drawing(
        figure,
        pd.concat([drawn.rows for drawn in shown]),
        title="Scaling laws",
        caption=law.CAPTION
        + any(panel.envelope for panel in spec.panels) * law.ENVELOPE
        + "Hollow marks are not fitted. "
        + "Line: the fitted form, with its 95 % interval if it is a law; dashed: the best other form. "
        + bool(chosen) * "Diamonds: best values at equal compute, hollow at the edge of the grid. ",
        claims=claims,
        remarks="" if claims else "No law is fitted.",
    )


def _cell(
    axis: Axes, cell: Sequence[Panel], tables: Sequence[Table], fits: Sequence[dict[str, Any]]
) -> Shown:
    if cell[0].best:
        return _optima(axis, cell, tables, fits)
    table = common.merge(tables, [cell[0].experiment])
    return (_restarts if cell[0].restarts else _law)(axis, cell[0], table, fits)


def _law(axis: Axes, panel: Panel, table: Table, fits: Sequence[dict[str, Any]]) -> Shown:
    fit = common.fit_of(fits, panel.fits()[0])
    coloured = common.with_hue(panel, table, panel.x)
    rows = law.panel(axis, coloured, table, fit)
    lines = law.subtitle(fit, panel.x, panel.y, 60)
    if len(fit["groups"]) == 1:
        lines += _forms(axis, fit["groups"][0], panel)
    _legend(axis, common.legend_title(coloured.hue) if coloured.hue else "")
    return Shown(_falls(fit, panel), lines, rows, claims_of_fit(fit))


def _legend(axis: Axes, title: str = "") -> None:
    if axis.get_legend_handles_labels()[0]:
        style = {"fontsize": common.SMALL, "title_fontsize": common.SMALL, "handlelength": 1.0}
        axis.legend(loc="best", ncols=2, title=title, handletextpad=0.5, columnspacing=1.0, **style)


def _falls(fit: Fit, panel: Panel) -> str:
    """The takeaway of a law: its exponent, or that there is none."""
    group = fit["groups"][0]
    if len(fit["groups"]) > 1 or "error" in group or group["chosen"] == "constant":
        return law.title_of(panel)
    first, last = group["means"]["y"][0], group["means"]["y"][-1]
    verb = "falls" if last < first else "rises"
    if not supported(group):
        fold = max(first, last) / min(first, last)
        return sentence(f"{noun(panel.y)} {verb} {estimate(fold)}-fold; no power law is claimed")
    value, _ = slope(group["forms"][group["chosen"]])
    return sentence(f"{noun(panel.y)} {verb} as power {estimate(value)} of {noun(panel.x)}")


def _forms(axis: Axes, group: Mapping[str, Any], panel: Panel) -> str:
    """Draw the form shown, if it is no law and so has no line yet, and its best rival; returns the rival's name."""
    forms = {
        name: form
        for name, form in group.get("forms", {}).items()
        if form["curve"] and form["aicc"] is not None
    }
    own, end = group.get("chosen"), group["range"][0][1] if forms else 0.0
    if own in forms and own != "constant" and not supported(group):
        _curve(axis, forms[own], end, color="black", linewidth=1.0)
    others = sorted((name for name in forms if name != own), key=lambda name: float(forms[name]["aicc"]))
    if not others:
        return ""
    _curve(axis, forms[others[0]], end, color=common.GREY, linestyle=common.DASHES[1], linewidth=1.0)
    return f"\ndashed: {FORM_NAMES[others[0]]}, the best rival"


def _curve(axis: Axes, form: Mapping[str, Any], end: float, **style: Any) -> None:
    """A form's curve over the data, within the axes as they are."""
    x, y = np.array(form["curve"]["x"]), np.array(form["curve"]["y"])
    low, high = axis.get_ylim()
    axis.plot(x[x <= end], y[x <= end], zorder=3, **style)
    axis.set_ylim(low, high)


def _optima(
    axis: Axes, cell: Sequence[Panel], tables: Sequence[Table], fits: Sequence[dict[str, Any]]
) -> Shown:
    """The best value of each column, and the steps beside the first, against compute."""
    rows: list[pd.DataFrame] = []
    claims: list[Claim] = []
    values: list[float] = []
    places: list[float] = []
    index = 0
    for panel in cell:
        table = common.merge(tables, [panel.experiment])
        fit = common.fit_of(fits, panel.fits()[0])
        group, column = fit["groups"][0], str(panel.best)
        rows.append(common.rows_of(table, panel.where, panel.y, column, "train_flops"))
        claims += claims_of_fit(fit)
        if "optima" not in group:
            continue
        for key, name in (("x", column), *((("steps", "training.steps"),) if panel is cell[0] else ())):
            colour = common.OKABE_ITO[index % 8]
            isoflop.best_values(axis, group, key, colour)
            common.entry(axis, noun(name), marker="D", color=colour)
            index += 1
            values += [item[key] for item in group["optima"]]
        places += [item["second"] for item in group["optima"]]
    if not places:
        raise UserError(f"too few values in {cell[0].experiment} to find the best ones")
    common.axis_scale(axis, "x", label("train_flops"), np.array(places))
    common.axis_scale(axis, "y", Label("best value at equal compute", log=True), np.array(values))
    axis.set_ylim(top=20 * axis.get_ylim()[1])  # room for the legend above the curves
    _legend(axis)
    return Shown(_grows(claims), "", pd.concat(rows), claims)


def _grows(claims: Sequence[Claim]) -> str:
    """The takeaway of the optima: what is known to grow with compute."""
    grown: list[str] = []
    for claim in claims:
        if claim.sign > 0:
            how = "with compute, by a local exponent of" if claim.against else "as compute to the power"
            grown.append(f"{noun(claim.metric)} {'' if grown else 'grows '}{how} {estimate(claim.value)}")
    return f"The best {', '.join(grown)}" if grown else "No best choice is known to grow"


def _restarts(axis: Axes, panel: Panel, table: Table, fits: Sequence[dict[str, Any]]) -> Shown:
    rows, key, laws = restarts.laws_of(table, panel)
    restarts.panel(axis, laws)
    lines = (len(restarts.entries(axis, laws, key)) + 1) // 2
    low, high = axis.get_ylim()
    axis.set_ylim(low - 0.14 * lines * (high - low), high)  # room for the legend below the curves
    _legend(axis)
    first = next(iter(laws.values()))
    missed = points(restarts.missed(laws), sign=False)
    note = f"dashed: predicted from {first.half} attempts; it misses {first.whole} by {missed} at most"
    return Shown(_attempts(laws, key), common.wrap(note, 52), rows, restarts.claims(laws, key))


def _attempts(laws: Mapping[Any, restarts.Law], key: str | None) -> str:
    """The takeaway of restarts: what all attempts solve by the best and the worst policy."""
    ranked = sorted(laws, key=lambda name: laws[name].measured.value)
    ends = dict.fromkeys((ranked[-1], ranked[0]))
    solved = [
        f"{percent(laws[name].measured.value)} by {common.hue_name(str(key), name) if key else 'restarts'}"
        for name in ends
    ]
    return f"{laws[ranked[0]].whole} attempts solve {', '.join(solved)}"
