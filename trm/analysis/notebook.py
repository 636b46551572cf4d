"""Helpers of the notebooks: tables by experiment name, figures that show themselves."""

import io
from pathlib import Path
from typing import Any

from trm.analysis.drawing import styled
from trm.analysis.kinds import FIGURE, fit_and_draw
from trm.analysis.kinds.common import Drawing
from trm.analysis.tables import Table, load
from trm.errors import UserError
from trm.io import read_json
from trm.study.reading import parse


class Picture:
    """A drawn figure; notebooks show it as a PNG."""

    def __init__(self, drawing: Drawing):
        self.drawing = drawing
        buffer = io.BytesIO()
        with styled():
            drawing.canvas.savefig(buffer, format="png")
        self.png = buffer.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return self.drawing.sentence


class Results:
    """The tables under a results folder. `folder`: `results`, or None to look for it here and in the folders above.
    UserError: there is no results folder with tables."""

    def __init__(self, folder: str | Path | None = None):
        here = Path.cwd()
        places = [Path(folder)] if folder else [parent / "results" for parent in (here, *here.parents)]
        found = next((place for place in places if (place / "tables").is_dir()), None)
        if found is None:
            raise UserError(f"no results/tables in {here} or above: build a report first (make report)")
        self.folder = found
        self.files: dict[str, Path] = {}
        for path in sorted(found.glob("tables/*.csv.json"), key=lambda item: item.stat().st_mtime):
            self.files[str(read_json(path).get("experiment"))] = path.with_suffix("")

    @property
    def experiments(self) -> list[str]:
        """Experiments that have a table, the newest table of each."""
        return sorted(self.files)

    def table(self, experiment: str) -> Table:
        """One experiment's table. UserError: it has none."""
        if experiment not in self.files:
            raise UserError(
                f"{experiment} has no table in {self.folder}; there are: {', '.join(self.experiments)}"
            )
        return load(self.files[experiment])

    def figure(self, experiment: str = "", **spec: Any) -> Picture:
        """Draw a figure from its spec, fitting what it needs."""
        wanted = parse(FIGURE, spec, "figure")
        tables = [self.table(name) for name in wanted.experiments(experiment)]
        with styled():
            return Picture(fit_and_draw(wanted, experiment, tables))
