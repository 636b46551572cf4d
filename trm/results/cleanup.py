"""Which checkpoints can be removed: those of finished runs and evaluations, and of those that no experiment uses."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trm.errors import UserError
from trm.pipeline.catalogue import RUN_FILES
from trm.storage import is_remote, local_path, open_store
from trm.storage.base import ObjectInfo

QUIET_SECONDS = 3600.0
"""Checkpoints of what no experiment uses may be another study's: they count as unknown only after so long
without a write."""


@dataclass(frozen=True)
class Entry:
    """Checkpoints of one run, or what one evaluation keeps."""

    name: str
    """RUN or RUN/evaluation-DIGEST."""
    files: tuple[str, ...]
    """Names below the results folder."""
    size: int
    """Bytes."""
    state: str
    """`finished`: the result exists; `unfinished`: it goes on from here; `unknown`: no experiment uses it;
    `in use`: no experiment uses it, but somebody writes to it."""


def find_entries(root: str, known: set[str]) -> list[Entry]:
    """What is in `root`/checkpoints, largest first. `root`: a results folder or its address; `known`: the study's
    names of entries. UserError: the bucket cannot be read."""
    store = open_store(root)
    results = {info.name for info in store.list("runs/")}
    files: dict[str, list[ObjectInfo]] = {}
    for info in store.list("checkpoints/"):
        _, run, *rest = info.name.split("/")
        if rest:
            name = f"{run}/{rest[0]}" if rest[0].startswith("evaluation-") else run
            files.setdefault(name, []).append(info)
    entries = []
    for name, found in files.items():
        run, _, evaluation = name.partition("/")
        wanted = [f"{evaluation}.json"] if evaluation else RUN_FILES
        if all(f"runs/{run}/{file}" in results for file in wanted):
            state = "finished"
        elif name in known:
            state = "unfinished"
        else:
            recent = time.time() - max(info.updated for info in found) < QUIET_SECONDS
            state = "in use" if recent else "unknown"
        entries.append(
            Entry(name, tuple(info.name for info in found), sum(info.size for info in found), state)
        )
    return sorted(entries, key=lambda entry: (-entry.size, entry.name))


def clean(root: str, entries: list[Entry], unknown: bool, dry_run: bool) -> list[Entry]:
    """Remove what is finished (and what is unknown, on request); returns what was removed. UserError: something cannot
    be removed."""
    removed = [
        entry for entry in entries if entry.state == "finished" or (unknown and entry.state == "unknown")
    ]
    remove = (
        open_store(root).delete if is_remote(root) else lambda name: _remove(Path(local_path(root), name))
    )
    for entry in () if dry_run else removed:
        for name in entry.files:
            remove(name)
    return removed


def _remove(path: Path) -> None:
    """Remove a file and the folders that it leaves empty."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; make it writable and clean again") from error
    with suppress(OSError):  # others are in there
        os.removedirs(path.parent)
