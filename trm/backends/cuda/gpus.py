"""Which GPUs a process may use, why there are none, and which one it takes. Needs no torch.

A claim of a GPU is a lock on a file named after it, held until the process ends. So jobs that Snakemake runs at the
same time on one machine, and the workers of a run, get different GPUs without communicating. Further processes claim
second places on each GPU, then third ones, so that they spread evenly.
"""

import errno
import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trm.io import private_folder

DRIVERS = {12: 525, 13: 580}
"""Oldest driver for each major version of CUDA (NVIDIA, CUDA compatibility)."""
PLACES = 64
_HELD: dict[Path, int] = {}
"""File descriptors of this process's locks."""


def visible_gpus(devices: Path = Path("/dev")) -> int:
    """NVIDIA GPUs that jobs of this machine may use, at least 1: what $CUDA_VISIBLE_DEVICES names, else all."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return max(1, len(list(devices.glob("nvidia[0-9]*"))))
    names = [name.strip() for name in named.split(",")]
    if names[0].startswith("MIG"):
        return 1  # CUDA uses the first slice only
    end = next((k for k, name in enumerate(names) if not name or name.startswith("-")), len(names))
    return max(1, end)  # CUDA ends the list at the first invalid name


def why_no_gpu(
    version: str,
    cuda: str | None,
    devices: Path = Path("/dev"),
    driver: Path = Path("/proc/driver/nvidia/version"),
) -> str:
    """The reason why torch finds no GPU, and what to do.

    Args:
        version: torch's version.
        cuda: the version of CUDA that it was built for; None: a build for processors.
        devices: folder of the device files.
        driver: where the driver says its version.
    """
    if cuda is None:
        return f"torch {version} is a CPU build: install one for CUDA (docs/cluster.md)"
    found = re.search(r"Kernel Module.*?\s(\d+)\.[\d.]+", driver.read_text()) if driver.exists() else None
    if found is None:
        return "this machine has no NVIDIA driver: run on a machine with a GPU"
    needed = DRIVERS.get(int(cuda.split(".")[0]), 0)
    if int(found[1]) < needed:
        return (
            f"the driver {found[1]} is too old for CUDA {cuda}, which torch {version} was built for and which needs "
            f"{needed} or newer: update it, or install a torch for an older CUDA (docs/cluster.md)"
        )
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None or not list(devices.glob("nvidia[0-9]*")):
        limit = "" if named is None else f" (CUDA_VISIBLE_DEVICES={named})"
        return f"no device is visible{limit}: request a GPU, in Slurm with --gres=gpu:1"
    return "CUDA does not start, though there is a device: see what nvidia-smi says"


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
    try:
        descriptor = _open(path)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    _HELD[path] = descriptor
    return True


FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Enough for a lock, also on another user's file. Anybody can put a link or a FIFO in its place."""


def _open(path: Path) -> int:
    """A lock file that all users share; where another user's file cannot serve, one of this user, whose processes then
    exclude only each other. OSError: there is neither."""
    try:
        with suppress(FileExistsError):
            descriptor = os.open(path, FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)  # whatever the umask: other users lock it, too
            return descriptor
        return _regular(os.open(path, FLAGS))
    except OSError:
        return _regular(os.open(private_folder() / path.name, FLAGS | os.O_CREAT, 0o600))


def _regular(descriptor: int) -> int:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file")
    return descriptor
