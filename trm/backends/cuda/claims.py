"""Claim a GPU that no other trm process uses.

A claim is a lock on a file named after the GPU, held until the process ends. So jobs that Snakemake runs at the same
time on one machine, and the workers of a run, get different GPUs without communicating. Further processes claim second
places on each GPU, then third ones, so that they spread evenly.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

PLACES = 64
_HELD: dict[Path, int] = {}
"""File descriptors of this process's locks."""


def claim(names: Sequence[str], preferred: int, folder: Path | None = None) -> tuple[int, bool]:
    """Claim one of several devices until this process ends. A second claim gives the same device.

    Args:
        names: a unique name for each device of the machine (its UUID).
        preferred: index of the device to try first.
        folder: folder of the lock files; by default the machine's temporary folder.

    Returns:
        Index of the claimed device, and whether other processes use it too.
    """
    folder = folder or Path(tempfile.gettempdir())
    order = [preferred, *(other for other in range(len(names)) if other != preferred)]
    for place in range(PLACES):
        for index in order:
            path = folder / f"trm-{names[index]}.lock{place or ''}"
            if path in _HELD or _locked(path):
                return index, place > 0
    return preferred, True


def _locked(path: Path) -> bool:
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    _HELD[path] = descriptor
    return True


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY)  # enough for a lock, also on another user's file
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)
        os.fchmod(descriptor, 0o666)  # whatever the umask: other users lock it, too
        return descriptor
    except (
        PermissionError
    ):  # of another user, made under a strict umask: processes of this user exclude each other
        return os.open(path.with_name(f"{path.name}-{os.getuid()}"), os.O_RDONLY | os.O_CREAT, 0o666)
