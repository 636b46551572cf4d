"""A lock of the operating system that says whether a controlling Snakemake process is alive in this folder.

Snakemake's own locks are files, which a killed process leaves behind. This lock ends with its process: every controller
shares it as long as it lives, and only one that can take it exclusively removes stale
locks.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from pathlib import Path
from typing import TextIO

from trm.errors import UserError

LOCK = Path(".snakemake/trm-run.lock")


def join() -> TextIO | None:
    """Share the lock until this process ends; the caller keeps the handle. If no other controller is alive, stale
    locks of Snakemake are removed. None: there are no such locks on this file system, so Snakemake's own decide."""
    try:
        LOCK.parent.mkdir(exist_ok=True)
        handle = LOCK.open("a+")
    except OSError:
        return None  # Snakemake says what is wrong with the folder
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_stale_locks()
    except BlockingIOError:
        pass
    except OSError:
        handle.close()
        return None
    _share(handle)
    return handle


def wait_and_join() -> TextIO:
    """Wait until no other controller is alive in this folder, then share the lock.

    Raises:
        UserError: if the folder cannot be written.
    """
    try:
        LOCK.parent.mkdir(exist_ok=True)
        handle = LOCK.open("a+")
    except OSError as error:
        raise UserError(f"{Path.cwd()}: {error.strerror}; run in a folder that can be written") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.seek(0)
        owner = handle.read().strip() or "unknown"
        print(
            f"another run (process {owner}) is active in this folder: waiting for its end",
            file=sys.stderr,
            flush=True,
        )
        fcntl.flock(handle, fcntl.LOCK_EX)
    _remove_stale_locks()
    _share(handle)
    return handle


def _share(handle: TextIO) -> None:
    fcntl.flock(handle, fcntl.LOCK_SH)
    handle.seek(0)
    handle.truncate()
    handle.write(str(os.getpid()))
    handle.flush()


def _remove_stale_locks() -> None:
    shutil.rmtree(".snakemake/locks", ignore_errors=True)
