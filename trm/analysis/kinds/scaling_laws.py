"""`scaling_laws`: what the study found, one message a panel. A figure of the whole study; `scaling_laws_a` is its first
panel alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from trm.analysis.findings import Finding
from trm.analysis.kinds import isoflop, restarts
from trm.analysis.labels import Label, label
from trm.analysis.laws import findings_of_fit
from trm.analysis.lazy import Axes, Table, common, np, pd
from trm.analysis.specs import Column, Figure, FitSpec, Minimised, Where
from trm.analysis.specs import Spec as Strict
from trm.analysis.words import estimate, noun
from trm.errors import UserError

ONE_COLUMN = 3.4
"""Inches of a figure with a single panel."""
LETTERS = "abcdefghijkl"


class Panel(Strict):
    """One panel of a named experiment; neighbours that show one choice's `best` share one."""

    experiment: str
    show: Literal["curves", "loss", "best", "attempts"]
    """curves: the metric against the choice, a curve a budget. loss: the metric at the best choice against compute.
    best: the best choice against compute, or what else `equal` names. attempts: what several solve, measured and
    predicted."""
    best: Column = "model.d_model"
    """The choice at equal compute."""
    equal: Column = isoflop.BUDGET
    """What the runs of a curve have in common. With another than compute, `where` should leave one budget."""
    y: Minimised = "cross_entropy"
    where: Where = {}
    hue: Column | None = None
    """Of attempts: one policy for each value; null: the grid points."""
    title: str | None = None
    """Its message, at most nine words; null: written from the findings."""
    series: str | None = None
    """Name beside the line of a panel with several; null: the experiment's."""

    def fits(self) -> tuple[FitSpec, ...]:
        if self.show == "attempts":
            return ()
        spec = isoflop.Spec(best=self.best, equal=self.equal, y=self.y, where=self.where)
        return spec.fits(self.experiment)


class Spec(Figure):
    """Loss over width, loss over compute, best supervision steps, attempts. A single panel is one column wide."""

    kind: Literal["scaling_laws"] = "scaling_laws"
    reading: ClassVar[str] = "what the study found, one panel a finding"
    panels: tuple[Panel, ...] = Field(min_length=1)

    def fits(self, experiment: str = "") -> tuple[FitSpec, ...]:
        found = {fit.model_dump_json(): fit for panel in self.panels for fit in panel.fits()}
        return tuple(found.values())

    def experiments(self, experiment: str = "") -> tuple[str, ...]:
        return tuple(dict.fromkeys(panel.experiment for panel in self.panels))

    def cells(self) -> list[tuple[Panel, ...]]:
        """What is drawn in each place: neighbours that show one choice's `best` share one."""
        return [
            tuple(found)
            for _, found in groupby(self.panels, lambda panel: (panel.show, panel.best, panel.equal))
        ]

    def alone(self) -> list[Spec]:
        """Each place as a figure of one column, `scaling_laws_a` the first."""
        cells = self.cells() if self.name else []
        return [
            self.model_copy(update={"name": f"{self.name}_{letter}", "panels": cell})
            for letter, cell in zip(LETTERS, cells)
            if len(cells) > 1
        ]


class Shown(NamedTuple):
    """One panel as drawn."""

    title: str
    rows: list[pd.DataFrame]
    findings: list[Finding]


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """One panel a finding; a panel whose experiment has no table yet says so."""
    cells = spec.cells()
    figure, axes = common.panels(len(cells), 2.3) if len(cells) > 1 else common.canvas(ONE_COLUMN, 2.5)
    shown, headings = [], []
    for letter, cell, axis in zip(LETTERS, cells, np.ravel(axes)):
        mark = f"{letter}  " if len(cells) > 1 else ""
        try:
            drawn = _SHOW[cell[0].show](axis, cell, tables, fits)
        except UserError as error:
            common.absent(axis, str(error))
            headings.append((axis, common.plain(mark + (cell[0].title or cell[0].experiment))))
            continue
        headings.append((axis, mark + (common.plain(cell[0].title) if cell[0].title else drawn.title)))
        shown.append(drawn)
    _one_scale(cells, list(np.ravel(axes)))
    common.aligned_headings(headings)
    common.legend(
        figure, _marks(np.ravel(axes)[0], [cell[0].show for cell in cells]), 5 if len(cells) > 1 else 2
    )
    # panels without anything to draw say why; runs that solve nothing must not end the study
    rows = [rows for drawn in shown for rows in drawn.rows] or [table.rows for table in tables]
    return common.Drawing(
        figure,
        pd.concat(rows),
        title="Scaling laws",
        caption="Diamonds: lowest point of the curve fitted to a budget. Hollow marks are not in a fit: dotted lines "
        "and pale bars predict them.",
        findings=[finding for drawn in shown for finding in drawn.findings],
    )


def _marks(first: Axes, shown: Sequence[str]) -> list[Any]:
    """The legend of the marks that panels of these kinds have."""
    style: dict[str, Any] = {"color": "black", "linestyle": "none"}
    optima = set(shown) & {"curves", "loss", "best"}
    names: list[tuple[str, dict[str, Any]]] = []
    if optima:
        names.append(("lowest point of a curve", style | {"marker": "D"}))
    if set(shown) & {"loss", "best", "attempts"}:
        mark = "D" if optima else "o"
        names.append(("not in the fit", style | {"marker": mark, "markerfacecolor": "white"}))
        names.append(("predicted by the fit", style | {"linestyle": ":"}))
        names.append(("95 % interval", style | {"marker": "|", "markersize": 9}))
    if set(shown) & {"loss", "best"}:
        names.append(("predicted range", style | {"linestyle": "-", "linewidth": 5, "alpha": 0.22}))
    return [common.entry(first, name, **look) for name, look in names]


def _one_scale(cells: Sequence[Sequence[Panel]], axes: Sequence[Axes]) -> None:
    """The loss over width and over compute on one axis, so that a diamond has one height."""
    shown = [axis for cell, axis in zip(cells, axes) if cell[0].show in ("curves", "loss") and axis.axison]
    if len(shown) > 1:
        low, high = zip(*(axis.get_ylim() for axis in shown))
        for axis in shown:
            common.error_scale(axis, cells[0][0].y, 1.6 * min(low), max(high) / 1.5)


def _fit(
    panel: Panel, tables: Sequence[Table], fits: Sequence[dict[str, Any]]
) -> tuple[Table, dict[str, Any]]:
    table = common.merge(tables, [panel.experiment])
    return table, common.fit_of(fits, panel.fits()[0])


def _curves(
    axis: Axes, cell: Sequence[Panel], tables: Sequence[Table], fits: Sequence[dict[str, Any]]
) -> Shown:
    table, fit = _fit(cell[0], tables, fits)
    rows = isoflop.curves(axis, cell[0], table, fit["groups"][0])
    growth = _growth(fit, "optimum")
    wider = "Wider models" if cell[0].best == "model.d_model" else f"More {noun(cell[0].best)}"
    corner: dict[str, Any] = {"xycoords": "axes fraction", "ha": "left", "va": "bottom", "color": "#333333"}
    common.note(axis, "a curve for each\nbudget in FLOPs", (0.02, 0.04), **corner)
    title = (
        f"{wider} pay at larger budgets"
        if growth and growth.sign > 0
        else f"Equal compute, varied {noun(cell[0].best)}"
    )
    return Shown(title, [rows], findings_of_fit(fit))


def _loss(
    axis: Axes, cell: Sequence[Panel], tables: Sequence[Table], fits: Sequence[dict[str, Any]]
) -> Shown:
    table, fit = _fit(cell[0], tables, fits)
    group = fit["groups"][0]
    isoflop.growth(axis, group, "best", cell[0].y, isoflop.BUDGET)
    if optima := group.get("optima"):
        common.error_scale(axis, cell[0].y, *_span(optima))
    law = _growth(fit, "power")
    title = "Best loss over compute"
    if law and law.sign:
        title = f"Best loss {'falls' if law.sign < 0 else 'rises'}"
        title += ", but follows no power law" if law.against else " as a power of compute"
        common.inside(axis, f"exponent {law.amount}" + f"\n{law.against}" * bool(law.against))
    return Shown(title, [common.rows_of(table, cell[0].where, cell[0].y, cell[0].best, isoflop.BUDGET)], [])


def _span(optima: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    ends = [end for item in optima for end in (item["best_interval"] or [item["best"]])]
    return min(ends), max(ends)


def _growth(fit: Mapping[str, Any], kind: str) -> Finding | None:
    return next((item for item in findings_of_fit(fit) if item.kind == kind), None)


def _best(
    axis: Axes, cell: Sequence[Panel], tables: Sequence[Table], fits: Sequence[dict[str, Any]]
) -> Shown:
    rows, found, names = list[pd.DataFrame](), list[Finding](), list[tuple[float, float, str, str]]()
    places, values, marks = list[float](), list[float](), list[tuple[float, float]]()
    for index, panel in enumerate(cell):
        try:
            table, fit = _fit(panel, tables, fits)
        except UserError:
            if len(cell) == 1:
                raise
            continue
        group, colour = fit["groups"][0], common.OKABE_ITO[index % 8]
        rows.append(common.rows_of(table, panel.where, panel.y, panel.best, panel.equal))
        found += findings_of_fit(fit)
        if not (optima := group.get("optima")):
            continue
        isoflop.growth(axis, group, "x", panel.best, panel.equal, colour)
        law, end = _growth(fit, "optimum"), optima[-1]
        name = common.plain(panel.series or panel.experiment.replace("_", " "))
        power = estimate(law.value) if law and law.sign else ""
        if panel.equal == isoflop.BUDGET:
            name = f"{common.wrap(name, 14)}\n" + (f"power {power}" if power else "undecided")
        else:
            name += f": {power or 'undecided'}"
        names.append((end["second"], end["x"], name, colour))
        places += [item["second"] for item in optima]
        marks += [(item["second"], item["x"]) for item in optima]
        values += [end for item in optima for end in (item["x"], *(item["x_interval"] or ()))]
    if not places:
        raise UserError(f"too few values in {cell[0].experiment} to find the best ones")
    common.axis_scale(axis, "x", label(cell[0].equal), np.array(places), log=True)
    common.axis_scale(
        axis, "y", Label(f"best {noun(cell[0].best)}", label(cell[0].best).unit, log=True), np.array(values)
    )
    common.make_room(axis, [name for *_, name, _ in names])
    common.axis_scale(
        axis, "x", label(cell[0].equal), np.array(places), log=True
    )  # ticks for the wider range
    if cell[0].equal != isoflop.BUDGET:  # the curves end together
        isoflop.name_ends(axis, names, [])
        common.inside(axis, f"beside each name: power of\n{noun(cell[0].equal)}")
        names = []
    for x, y, name, colour in names:
        taken = any(x < at < 8 * x and 0.6 < value / y < 1.7 for at, value in marks)
        where: dict[str, Any] = (
            {"xytext": (-2, 16), "ha": "right"} if taken else {"xytext": (7, 0), "ha": "left"}
        )
        style = {"color": colour, "va": "center", "fontweight": "bold"}
        common.note(axis, name, (x, y), where["xytext"], ha=where["ha"], **style)
    grown = [item for item in found if item.kind == "optimum" and item.sign > 0]
    over = "compute" if cell[0].equal == isoflop.BUDGET else noun(cell[0].equal)
    title = f"More {over}: more {noun(cell[0].best)}" if grown else f"Best {noun(cell[0].best)} over {over}"
    return Shown(title.removesuffix(" Nsup"), rows, found)


def _attempts(
    axis: Axes, cell: Sequence[Panel], tables: Sequence[Table], fits: Sequence[dict[str, Any]]
) -> Shown:
    table = common.merge(tables, [cell[0].experiment])
    rows, key, laws = restarts.laws_of(table, cell[0])
    restarts.panel(axis, laws, key)
    return Shown(restarts.message(laws, key), [rows], restarts.findings(laws, key))


_SHOW = {"curves": _curves, "loss": _loss, "best": _best, "attempts": _attempts}
