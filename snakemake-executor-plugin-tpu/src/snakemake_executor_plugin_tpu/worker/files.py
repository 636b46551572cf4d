"""Small files of a host below ~/.snakemake-tpu, and the folder of one task."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

EXIT_BYTES = 512
BALLAST_BYTES = 4 << 20
LEAST_DISK = 64 << 20


def root() -> Path:
    """Return the folder of everything on this host."""
    return Path(os.environ.get("TPU_HOST_ROOT") or Path.home() / ".snakemake-tpu")


def free_disk() -> int:
    """Return the bytes that are free on the disk of `root()`."""
    found = os.statvfs(root())
    return found.f_bavail * found.f_frsize


def make_ballast() -> None:
    """Reserve room for the small files below: a full disk must not lose them."""
    path = root() / "ballast"
    if not path.exists() and free_disk() > LEAST_DISK:
        with contextlib.suppress(OSError):
            path.write_bytes(b"\1" * BALLAST_BYTES)


def read_text(path: Path) -> "str | None":
    """Return a small file's text, None if it does not exist."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def read_line(path: Path) -> "str | None":
    """Return what a job reported last, on one line."""
    return " ".join((read_text(path) or "").split())[:200] or None


def read_json(path: Path, default: Any = None) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return default


def write_json(path: Path, document: Any) -> None:
    write_text(path, json.dumps(document))


def write_text(path: Path, text: str) -> None:
    """Write a file that readers see complete or not at all. On a full disk the ballast makes room."""
    # a name that others can guess may be a link of theirs
    new = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        _create(new, text)
    except OSError as error:
        new.unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        (root() / "ballast").unlink(missing_ok=True)
        _create(new, text)
    os.replace(new, path)


def _create(path: Path, text: str) -> None:
    with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)


def is_locked(path: Path) -> bool:
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


class Task:
    """One process tree with its folder:

    spec      what to run                        log       its output, stdout and stderr
    alive     locked by the runner               exit      how it ended
    stop      a request to stop it               fence     touched while the loop reaches the bucket
    sent      bytes of the log in the bucket     work/     the working directory
    bin/      first on PATH                      progress, status, again, scratch/: the job's own
    """

    def __init__(self, name: str) -> None:
        self.name, self.folder = name, root() / "tasks" / name

    def state(self) -> str:
        """Return absent, running, ended, or vanished: the folder without a runner and without an end."""
        if not self.folder.is_dir():
            return "absent"
        # First whether it lives: a task that ends between the two checks has ended.
        lives = is_locked(self.folder / "alive")
        return "ended" if self.exit() else "running" if lives else "vanished"

    def exit(self) -> "dict[str, Any] | None":
        text = read_text(self.folder / "exit") or ""
        return dict(json.loads(text)) if text.startswith("{") and text.endswith("\n") else None

    def write_exit(self, document: dict[str, Any]) -> None:
        """Write the end, a few words, over bytes reserved at the start: a full disk must not lose it."""
        text = json.dumps(document).encode()
        with open(self.folder / "exit", "r+b", buffering=0) as file:
            file.write(text.ljust(EXIT_BYTES - 1) + b"\n")

    def tail(self, lines: int) -> list[str]:
        """Return the last lines of the log; of a progress bar, which overwrites its line, the last state."""
        with contextlib.suppress(OSError), open(self.folder / "log", "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 8000))
            text = log.read().decode(errors="replace")
            return [line.rstrip("\r").rpartition("\r")[2][:500] for line in text.split("\n") if line.strip()][
                -lines:
            ]
        return []

    @staticmethod
    def prune(keep: "set[str]") -> None:
        """Remove the folders of ended tasks."""
        for folder in (root() / "tasks").glob("*"):
            if folder.name not in keep and not is_locked(folder / "alive"):
                shutil.rmtree(folder, ignore_errors=True)
