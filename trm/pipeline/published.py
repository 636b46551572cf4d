"""Files with fixed names, which people open: `results/plots/*` and the report.

The identity of what each shows is a parameter of its rule, so Snakemake makes it again if it would show something else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trm.analysis.origin import read_figure
from trm.errors import UserError
from trm.io import sha256_file, write_bytes, write_json
from trm.pipeline.selection import Selection
from trm.play import models_folder
from trm.study.fingerprint import digest
from trm.study.points import Study


def report_identity(study: Study, selection: Selection, table_identity: Callable[[str], str]) -> str:
    """Digest of all that the report shows.

    Args:
        study: the study at one scale.
        selection: what is selected.
        table_identity: an experiment's name -> identity of its table.
    """
    shown: list[Any] = [
        study.name,
        study.scale_name,
        [figure.identity for figure in selection.shown],
        [table_identity(name) for name in selection.experiments],
        {name: item.skip for name, item in study.experiments.items() if item.skip},
        [[item.definition.question, item.definition.hypothesis] for item in study.experiments.values()],
        list(study.experiments),
        [sha256_file(path) for path in sorted(models_folder().glob("*/weights.safetensors"))],
    ]
    return digest(shown)


def publish(figure: str, identity: str, out: str) -> None:
    """Copy a figure's PDF and PNG to a fixed name, with its identity and caption as JSON. UserError: a file is missing,
    damaged or cannot be written."""
    source, target = Path(figure), Path(out)
    caption = read_figure(source)
    target.with_suffix(".json").unlink(missing_ok=True)  # it never outlives the picture it describes
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
