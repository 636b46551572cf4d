"""Which checkpoints can be removed: those of finished runs, and of runs that no experiment asks for."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from trm.errors import UserError
from trm.pipeline.naming import RUN_FILES


@dataclass(frozen=True)
class Entry:
    """Checkpoints of one run."""

    run: str
    folder: Path
    size: int
    """Bytes on disk."""
    state: str
    """`finished`: the result exists; `unfinished`: training resumes from here; `unknown`: no experiment asks for it."""


def survey(root: str, known: set[str]) -> list[Entry]:
    """Every run's checkpoints under `root`/checkpoints, largest first."""
    entries = []
    for folder in Path(root, "checkpoints").glob("*/"):
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        finished = all(Path(root, "runs", folder.name, file).exists() for file in RUN_FILES)
        state = "finished" if finished else "unfinished" if folder.name in known else "unknown"
        entries.append(Entry(folder.name, folder, size, state))
    return sorted(entries, key=lambda entry: (-entry.size, entry.run))


def clean(entries: list[Entry], unknown: bool, dry_run: bool) -> list[Entry]:
    """Remove the checkpoints of finished runs (and of unknown ones if asked); returns what was removed.

    Raises:
        UserError: if a folder cannot be removed.
    """
    removed = [
        entry for entry in entries if entry.state == "finished" or (unknown and entry.state == "unknown")
    ]
    if not dry_run:
        for entry in removed:
            try:
                shutil.rmtree(entry.folder)
            except OSError as error:
                raise UserError(
                    f"{error.filename}: {error.strerror}; make it writable and clean again"
                ) from error
    return removed
