"""Which checkpoints can be removed: those of finished runs, and of runs that no experiment uses."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from trm.errors import UserError
from trm.pipeline.catalogue import RUN_FILES
from trm.storage import is_remote, local_path, open_store

QUIET_SECONDS = 3600.0
"""Checkpoints of a run that no experiment uses may be another study's: they count as unknown only after so long
without a write."""


@dataclass(frozen=True)
class Entry:
    """Checkpoints of one run."""

    run: str
    files: tuple[str, ...]
    """Names below the results folder."""
    size: int
    """Bytes."""
    state: str
    """`finished`: the result exists; `unfinished`: training resumes from here; `unknown`: no experiment uses it;
    `in use`: no experiment uses it, but somebody writes to it."""


def survey(root: str, known: set[str]) -> list[Entry]:
    """Checkpoints of every run in `root`/checkpoints, largest first. `root`: a results folder or its address.
    UserError: the bucket cannot be read."""
    store = open_store(root)
    results = {info.name for info in store.list("runs/")}
    files: dict[str, list[tuple[str, int, float]]] = {}
    for info in store.list("checkpoints/"):
        _, run, *rest = info.name.split("/", 2)
        if rest:
            files.setdefault(run, []).append((info.name, info.size, info.updated))
    entries = []
    for run, found in files.items():
        if all(f"runs/{run}/{file}" in results for file in RUN_FILES):
            state = "finished"
        elif run in known:
            state = "unfinished"
        else:
            recent = time.time() - max(updated for _, _, updated in found) < QUIET_SECONDS
            state = "in use" if recent else "unknown"
        entries.append(
            Entry(run, tuple(name for name, _, _ in found), sum(size for _, size, _ in found), state)
        )
    return sorted(entries, key=lambda entry: (-entry.size, entry.run))


def clean(root: str, entries: list[Entry], unknown: bool, dry_run: bool) -> list[Entry]:
    """Remove the checkpoints of finished runs (and of unknown ones on request); returns what was removed. UserError:
    something cannot be removed."""
    removed = [
        entry for entry in entries if entry.state == "finished" or (unknown and entry.state == "unknown")
    ]
    for entry in () if dry_run else removed:
        if is_remote(root):
            store = open_store(root)
            for name in entry.files:
                store.delete(name)
            continue
        try:
            shutil.rmtree(Path(local_path(root), "checkpoints", entry.run))
        except OSError as error:
            raise UserError(
                f"{error.filename}: {error.strerror}; make it writable and clean again"
            ) from error
    return removed
