"""Files with fixed names, which people open: `results/plots/*` and the report.

A small JSON beside each (its stamp) holds the identity of what it shows. If that differs from what is selected now, the
file is stale, whatever its modification time and Snakemake's records say.
"""

from __future__ import annotations

import json
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

from trm.analysis.origin import read_figure
from trm.errors import UserError
from trm.io import sha256_file, write_bytes, write_json
from trm.pipeline.naming import REPORT, published
from trm.pipeline.selection import Selection
from trm.play import models_folder
from trm.study.fingerprint import digest
from trm.study.points import Study


class Published:
    """Identities of the published files, and which of them are stale.

    Args:
        study: the study at one scale.
        selection: what is selected.
        tables: experiment -> identity of its table.
        budget: the config's `budget_hours`, which the report shows.
    """

    def __init__(self, study: Study, selection: Selection, tables: Any, budget: float | None):
        self._study, self._selection, self._table_identity = study, selection, tables
        self._budget = budget

    @cached_property
    def report_identity(self) -> str:
        """Digest of all that the report shows."""
        study, selection = self._study, self._selection
        shown: list[Any] = [
            study.name,
            study.scale_name,
            [figure.identity for figure in selection.shown],
            [self._table_identity(name) for name in selection.experiments],
            {name: item.skip for name, item in study.experiments.items() if item.skip},
            [[item.definition.question, item.definition.hypothesis] for item in study.experiments.values()],
            list(study.experiments),
            [sha256_file(path) for path in sorted(models_folder().glob("*/weights.safetensors"))],
        ]
        return digest([*shown, f"{self._budget:g}"] if self._budget else shown)

    def stale_figure(self, stem: str) -> list[str]:
        """Input that makes Snakemake publish a figure again; nothing if it is current."""
        return self._reason(published(stem), self._selection.figure(stem).identity)

    def stale_report(self) -> list[str]:
        """The same for the report."""
        return self._reason(REPORT, self.report_identity)

    def _reason(self, path: str, identity: str) -> list[str]:
        return [self._newer_file.name] if is_stale(path, identity) else []

    @cached_property
    def _newer_file(self) -> Any:
        """A file newer than anything published. Without its records, Snakemake runs a job whose outputs exist only for
        a newer input (9.27); this one lives outside the project, and only as long as this process."""
        return tempfile.NamedTemporaryFile(prefix="trm-shows-something-else-")


def is_stale(path: str, identity: str) -> bool:
    """Whether a published file shows something else than `identity`; a missing one is not stale."""
    if not Path(path).exists():
        return False
    try:
        stamp = json.loads(Path(path).with_suffix(".json").read_text(encoding="utf-8"))
        return bool(stamp["identity"] != identity)
    except (OSError, ValueError, KeyError, TypeError):
        return True


def publish(figure: str, identity: str, out: str) -> None:
    """Copy a figure's PDF and PNG to a fixed name, with its stamp.

    Raises:
        UserError: a file is missing, damaged or cannot be written.
    """
    source, target = Path(figure), Path(out)
    caption = read_figure(source)
    target.with_suffix(".json").unlink(missing_ok=True)  # a stamp never outlives the picture it describes
    for suffix, start in ((".pdf", b"%PDF-"), (".png", b"\x89PNG\r\n\x1a\n")):
        path = source.with_suffix(suffix)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; build the figure again") from error
        if not data.startswith(start):
            raise UserError(f"{path} is damaged: delete it, and the figure is drawn again")
        write_bytes(target.with_suffix(suffix), data)
    write_json(target.with_suffix(".json"), {"identity": identity, "figure": source.name, "caption": caption})
