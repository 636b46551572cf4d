"""Study-wide: the laws of every experiment side by side."""

from __future__ import annotations

from typing import Any

import pandas as pd

from trm.analysis.figures import law
from trm.analysis.figures.base import Drawing, canvas, finish, fit_of, heading, table_of, wrap
from trm.analysis.sentences.laws import law_sentence
from trm.analysis.specs import ScalingLawsFigure
from trm.analysis.tables import Table
from trm.errors import UserError


def draw(spec: ScalingLawsFigure, tables: list[Table], fits: list[dict[str, Any]]) -> Drawing:
    """One panel a law; panels of experiments that have no table yet say so."""
    count = len(spec.panels)
    columns = 1 if count == 1 else 2 if count in (2, 4) else 3
    rows = -(-count // columns)
    figure, axes = canvas(2.9 * columns, 2.85 * rows, rows, columns)
    shown, sentences, used, numbers = [], [], [], {}
    for place, (panel, axis) in enumerate(zip(spec.panels, axes.flat)):
        title = f"{chr(97 + place)}  {(panel.title or law.title_of(panel)).removeprefix('Error ')}"
        try:
            table = table_of(tables, panel.experiment)
            found = panel.fits()
            fit = fit_of(fits, found[0]) if found else None
            drawn = law.panel(axis, _where(panel), table, fit)
        except UserError as error:
            axis.text(0.5, 0.5, wrap(str(error), 34), ha="center", va="center", fontsize=7, color="#B00020")
            heading(axis, title)
            axis.set_axis_off()
            continue
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=5.5, loc="best", handlelength=1.2)
        if place % columns:
            axis.set_ylabel("")
        heading(axis, title, law.subtitle(fit, panel, 48), 6)
        shown.append(drawn)
        used.append(table)
        if fit:
            sentences.append(f"({chr(97 + place)}) {law_sentence(fit, panel)}")
            numbers[f"{panel.experiment}:{panel.x}"] = law.summary(fit)
    for axis in list(axes.flat)[count:]:
        axis.set_axis_off()
    if not shown:
        raise UserError("no panel of scaling_laws has both its table and its fit")
    return finish(
        figure,
        spec,
        list({table.experiment: table for table in used}.values()),
        pd.concat(shown),
        title=spec.title or "Scaling laws",
        caption=law.CAPTION + law.CAPTION_FIT.format(refits="1,000", failed="see each fit: few or none"),
        sentence=" ".join(sentences) or "No law is fitted.",
        numbers=numbers,
    )


def _where(panel: Any) -> Any:
    """Test-time compute is read from the fixed policy's rows."""
    if panel.x != "flops_per_puzzle":
        return panel
    return panel.model_copy(update={"where": {**panel.where, "policy": "fixed"}})
