"""Folders into a store, and the output folder of a command."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from trm.io import files_below
from trm.storage import Store, is_remote, local_path, open_store


def upload_folder(folder: Path, store: Store, last: Sequence[str] = ()) -> None:
    """Upload every file below `folder` under its relative name; those in `last` after all others, in that order, so
    that a reader who finds them knows that the upload is complete."""
    names = files_below(folder)
    for name in [name for name in names if name not in last] + [name for name in last if name in names]:
        store.put_file(name, folder / name)


@contextlib.contextmanager
def output_folder(uri: str, last: Sequence[str] = (), upload: bool = True) -> Iterator[Path]:
    """A local folder to write results into, named like the last part of the URI.

    For a path it is that folder. In a bucket it is a temporary one, uploaded when the block ends without an error (if
    `upload`: one process of a job uploads), the files in `last` after the others.
    """
    if not is_remote(uri):
        yield local_path(uri)
        return
    store = open_store(uri)
    with tempfile.TemporaryDirectory(prefix="trm-out-", ignore_cleanup_errors=True) as parent:
        folder = Path(parent, uri.rstrip("/").rpartition("/")[2])
        folder.mkdir()
        yield folder
        if upload:
            upload_folder(folder, store, last)
