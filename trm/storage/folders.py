"""Whole folders into a store, and the output folder of a command."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from trm.storage.base import Patience, Store, is_remote
from trm.storage.opening import open_store


def local_files(folder: Path) -> list[str]:
    """Names of all files below `folder`, relative, in order."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def upload_folder(folder: Path, store: Store, last: Sequence[str] = ()) -> None:
    """Write every file below `folder` under its relative name; those in `last` after all others, in that
    order, so that a reader who sees them knows the rest to be there."""
    names = local_files(folder)
    for name in [name for name in names if name not in last] + [name for name in last if name in names]:
        store.put_file(name, folder / name)


@contextlib.contextmanager
def output_folder(
    uri: str, last: Sequence[str] = (), upload: bool = True, patience: Patience | None = None
) -> Iterator[Path]:
    """A local folder to write results into, of the same name as the URI's last part.

    For a path it is that folder; for gs:// a temporary one that is uploaded when the block ends without an
    error (and `upload` holds: one process of a job), the files in `last` after the others.
    """
    if not is_remote(uri):
        yield Path(uri)
        return
    store = open_store(uri, patience)
    parent = Path(tempfile.mkdtemp(prefix="trm-out-"))
    folder = parent / uri.rstrip("/").rpartition("/")[2]
    try:
        folder.mkdir()
        yield folder
        if upload:
            upload_folder(folder, store, last)
    finally:
        shutil.rmtree(parent, ignore_errors=True)
