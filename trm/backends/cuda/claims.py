"""Claim a GPU that no other trm process uses.

A claim is a lock on a file named after the GPU, held until the process ends. So jobs that Snakemake runs at the same
time on one machine, and the workers of a run, get different GPUs without communicating.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

_HELD: list[int] = []
"""File descriptors of this process's locks."""


def claim(names: Sequence[str], preferred: int, folder: Path | None = None) -> int | None:
    """Claim one of several devices until this process ends.

    Args:
        names: a unique name for each device of the machine (its UUID).
        preferred: index of the device to try first.
        folder: folder of the lock files; by default the machine's temporary folder.

    Returns:
        Index of the claimed device, or None if other processes have claimed all.
    """
    folder = folder or Path(tempfile.gettempdir())
    for index in (preferred, *(other for other in range(len(names)) if other != preferred)):
        descriptor = _open(folder / f"trm-{names[index]}.lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        _HELD.append(descriptor)
        return index
    return None


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY)  # enough for a lock, also on another user's file
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
