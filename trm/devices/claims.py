"""Which GPU a process computes on: each takes one that no other process of ours holds.

A claim is a lock on a file named by the GPU, held until the process ends. Jobs that Snakemake runs side by side on one
machine, and the workers of one run, so get a GPU each without knowing of each other.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

_HELD: list[int] = []
"""Descriptors of the locks of this process."""


def claim(names: Sequence[str], preferred: int, folder: Path | None = None) -> int | None:
    """Claim one of several devices until this process ends.

    Args:
        names: a unique name of each device of the machine (its UUID).
        preferred: the device to try first.
        folder: folder of the lock files; by default the machine's temporary folder.

    Returns:
        Place of the claimed device in `names`, or None where other processes hold all of them.
    """
    folder = folder or Path(tempfile.gettempdir())
    order = [preferred, *(place for place in range(len(names)) if place != preferred)]
    for place in order:
        descriptor = _open(folder / f"trm-{names[place]}.lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        _HELD.append(descriptor)
        return place
    return None


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY)  # another user's file can be locked, but not opened for writing
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
