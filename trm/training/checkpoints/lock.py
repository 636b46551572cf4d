"""A lock so that only one process trains a run: a killed pipeline may leave its training job alive."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def training_lock(checkpoints: str, rank: int) -> Iterator[None]:
    """Hold the run's lock, after waiting for any other process on this machine that holds it.

    The operating system releases the lock when its process ends. Checkpoints in a bucket are protected by their lease.
    """
    if rank or "://" in checkpoints:
        yield
        return
    folder = Path(checkpoints)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a")
    except OSError:
        yield  # the first write to the folder reports the error
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(
                f"{folder}: another process trains this run; waiting for it to end",
                file=sys.stderr,
                flush=True,
            )
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
