"""One process at a time trains a run: a killed pipeline may leave its training alive, and the next one must not
write the same checkpoints beside it."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def only_trainer(checkpoints: str, rank: int) -> Iterator[None]:
    """Hold the run's lock, waiting for another process on this machine that trains it. The operating system frees the
    lock when its process ends, however it ends. Checkpoints in a bucket are guarded by their lease instead."""
    if rank or "://" in checkpoints:
        yield
        return
    folder = Path(checkpoints)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a")
    except OSError:
        yield  # the first write to the folder says what is wrong with it
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(
                f"{folder}: another process trains this run; waiting for its end", file=sys.stderr, flush=True
            )
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
