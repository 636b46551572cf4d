"""`scaling_laws`: the laws of several experiments side by side. A figure of the whole study."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from trm.analysis.kinds import law
from trm.analysis.laws import of_fit
from trm.analysis.lazy import Table, common, pd
from trm.analysis.specs import Figure, FitSpec
from trm.errors import UserError


class Panel(law.Spec):
    """One panel: the law figure of a named experiment."""

    experiment: str

    def fits(self, experiment: str = "") -> tuple[FitSpec, ...]:
        if self.x != "flops_per_puzzle" or self.fit is None:
            return law.Spec.fits(self, self.experiment)
        where = {**self.where, "policy": "fixed"}  # as the frontier figure fits it
        return (FitSpec(experiments=(self.experiment,), form="auto", x=self.x, where=where),)


class Spec(Figure):
    """Error against parameters, unique puzzles, copies, training and test-time FLOPs."""

    kind: Literal["scaling_laws"] = "scaling_laws"
    reading: ClassVar[str] = "the laws of the study side by side, on the same scale of errors"
    panels: tuple[Panel, ...] = Field(min_length=1)

    def fits(self, experiment: str = "") -> tuple[FitSpec, ...]:
        found = {fit.model_dump_json(): fit for panel in self.panels for fit in panel.fits()}
        return tuple(found.values())

    def experiments(self, experiment: str = "") -> tuple[str, ...]:
        return tuple(dict.fromkeys(panel.experiment for panel in self.panels))


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """One panel a law; a panel whose experiment has no table yet says so."""
    figure, axes = common.panels(len(spec.panels), 2.85)
    shown, claims = [], []
    for index, (panel, axis) in enumerate(zip(spec.panels, axes)):
        letter = chr(97 + index)
        title = common.wrap(f"{letter}  {panel.title or law.title_of(panel)}", 36)
        try:
            table = common.merge(tables, [panel.experiment])
            found = panel.fits()
            fit = common.fit_of(fits, found[0]) if found else None
            where = {**panel.where, **({"policy": "fixed"} if panel.x == "flops_per_puzzle" else {})}
            coloured = common.with_hue(panel.model_copy(update={"where": where}), table, panel.x)
            drawn = law.panel(axis, coloured, table, fit)
        except UserError as error:
            words = common.wrap(str(error), 34)
            axis.text(0.5, 0.5, words, ha="center", va="center", fontsize=common.SMALL, color=common.MISSING)
            common.heading(axis, title)
            axis.set_axis_off()
            continue
        if axis.get_legend_handles_labels()[0]:
            style = {"fontsize": common.SMALL, "title_fontsize": common.SMALL, "handlelength": 1.2}
            over = common.legend_title(coloured.hue) if coloured.hue else ""
            axis.legend(loc="lower left", ncols=2, title=over, **style)  # laws fall
        common.heading(axis, title, law.subtitle(fit, panel.x, panel.y, 46))
        shown.append(drawn)
        claims += of_fit(fit) if fit else []
    if not shown:
        raise UserError("no panel of scaling_laws has both its table and its fit")
    return common.Drawing(
        figure,
        pd.concat(shown),
        title="Scaling laws",
        caption=law.CAPTION
        + any(panel.envelope for panel in spec.panels) * law.ENVELOPE
        + "Hollow marks are not fitted. "
        + "Line and ribbon: fitted law with its 95 % interval, where the points support one.",
        claims=claims,
        remarks="" if claims else "No law is fitted.",
    )
