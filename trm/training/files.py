"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

from trm.errors import UserError


def write_atomically(path: Path, data: bytes) -> None:
    """Write under a temporary name, sync, rename, sync the folder: a reader sees the old file or the new one.

    Raises:
        UserError: where the disk is full or the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise UserError(f"cannot write {path}: {advice(error)}") from error


def write_json(path: Path, value: dict[str, Any]) -> None:
    """An indented JSON file, atomically; NaN is refused."""
    write_atomically(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def sync_folder(path: Path) -> None:
    """Make the folder's entries survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def advice(error: OSError) -> str:
    """What went wrong with the disk and what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full; free space and start again, training goes on from its last checkpoint"
    if error.errno == errno.EFBIG:
        return "files of this size are not allowed to this process; raise the limit (ulimit -f)"
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return "the folder is read-only for this user; choose another one"
    return error.strerror or str(error)
