"""A task is one supervised process tree on one worker, with a private folder:

spec.json   what to run                    log        its output, stdout and stderr
lease       seconds it may run unattended  progress   the job's newest checkpoint
alive       locked by the supervisor       exit       the exit record
stop        grace period of a stop request requests/  requests of `tpurun` to the controller
stalled     the job makes no progress      stacks     a stop request wants the stacks of its processes
bin/        first on the job's PATH        work/      the job's working directory
status      one line by the job about its state
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any, TextIO

TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
EXIT_BYTES = 512
ACTIVE = Path("/run/snakemake-tpu/active")
SHARED = Path("/run/snakemake-tpu/shared")
"""What every user and every tpu-folder of this host sees: the claim and the running tasks (made by `Worker.deploy`)."""


def root() -> Path:
    """Return the agent's folder on this worker: the one that holds `bin/<hash>/worker/tasks.py`."""
    return Path(os.environ.get("TPU_AGENT_ROOT") or Path(__file__).resolve().parents[3])


def task_folder(name: str) -> Path:
    """Return the folder of a task; ValueError for names that could lead out of the agent's folder."""
    if not TASK_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a task name")
    return root() / "tasks" / name


def task_folders() -> list[Path]:
    return sorted((root() / "tasks").glob("[A-Za-z0-9]*"))


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that readers see it complete or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)


def note_activity() -> None:
    """Tell this host's guard, if it has one, that the pod is in use (see guard.py)."""
    with contextlib.suppress(OSError):
        (ACTIVE / str(os.getuid())).touch()


def read(path: Path) -> str | None:
    """Return a small file's text, or None if it does not exist."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def read_line(folder: Path, name: str) -> str | None:
    """Return what the job reported last as its `progress` or `status`, on one line."""
    return " ".join((read(folder / name) or "").split())[:200] or None


def write_exit(folder: Path, record: dict[str, Any]) -> None:
    """Write the exit record over blocks reserved at the task's start: a full disk must not lose it."""
    while len(text := json.dumps(record).encode()) >= EXIT_BYTES:
        record = {**record, "reason": record["reason"][:-10]}
    with open(folder / "exit", "r+b", buffering=0) as file:
        file.write(text.ljust(EXIT_BYTES - 1) + b"\n")


def read_exit(folder: Path) -> dict[str, Any] | None:
    """Return the exit record, or None while the task has not ended."""
    text = read(folder / "exit") or ""
    if not (text.startswith("{") and text.endswith("\n")):
        return None
    try:
        found = json.loads(text)
        return {"reason": "", **found, "code": int(found["code"])}
    except (ValueError, KeyError, TypeError):
        return {"code": 127, "reason": "its exit record cannot be read"}


def is_supervised(folder: Path) -> bool:
    """Whether the task's supervisor lives: it holds a lock until it ends."""
    return is_locked(folder / "alive")


def is_locked(path: Path) -> bool:
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def state_of(folder: Path) -> str:
    """Return `running`, `exited`, `vanished` (no exit record: a reboot, for example) or `absent`."""
    if not folder.is_dir():
        return "absent"
    # Liveness first: a task that ends between the two checks has exited.
    supervised = is_supervised(folder)
    if read_exit(folder) is not None:
        return "exited"
    return "running" if supervised else "vanished"


def renew_lease(folder: Path, seconds: float | None = None) -> None:
    """Restart the task's lease, the time it may run unattended."""
    with contextlib.suppress(OSError):
        if seconds is not None and not (folder / "stop").exists():
            write_atomically(folder / "lease", str(seconds))
        os.utime(folder / "lease")


class Lease:
    """How long a task has been unattended, by the monotonic clock: the other one may be set while the task runs."""

    def __init__(self, folder: Path):
        self.path, self.stamp, self.since = folder / "lease", 0, time.monotonic()

    def has_expired(self) -> bool:
        """Whether the task has been unattended for longer than its lease; a lease of 0 never ends."""
        try:
            seconds, stamp = float(self.path.read_text() or 0), self.path.stat().st_mtime_ns
        except (OSError, ValueError):
            return False
        if stamp != self.stamp:
            self.stamp, self.since = stamp, time.monotonic()
        return bool(seconds) and time.monotonic() - self.since > seconds


def list_for_all(name: str, about: dict[str, Any]) -> TextIO | None:
    """Show a running task to other users and folders for as long as this process lives."""
    with contextlib.suppress(OSError):
        owner = hashlib.sha256(str(root()).encode()).hexdigest()[:8]
        file = open(SHARED / f"{owner}-{name}", "w")  # noqa: SIM115 (locked until the supervisor ends)
        os.fchmod(file.fileno(), 0o644)
        mark = {
            "role": "other",
            "state": "running",
            "slot": f"{about.get('slot')}@{root()}",
            "root": str(root()),
        }
        file.write(
            json.dumps({"exit": None, "unattended": 0.0, "progress": None, "status": None, **about, **mark})
        )
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        return file
    return None


def tasks_of_others() -> dict[str, dict[str, Any]]:
    """Return what other users and folders run on this host."""
    found = {}
    for path in SHARED.glob("*-*"):
        with contextlib.suppress(ValueError, AttributeError):
            about = json.loads(read(path) or "{}")
            if about.get("root", str(root())) != str(root()) and is_locked(path):
                found[path.name] = {"role": "other", "state": "running", **about}
    return found


def shared() -> Path:
    return SHARED if SHARED.is_dir() else root()


def owner_path() -> Path:
    """Return the file that the controller's claim keeps locked."""
    return shared() / "controller"


def aside_path() -> Path:
    """Return the file that says why this host gets no jobs; a reboot removes it."""
    return shared() / "aside"


def owner_of_pod() -> dict[str, Any] | None:
    """Return the controller that holds the pod and how many seconds it has been silent; None if there is none."""
    if not is_locked(owner_path()):
        return None
    try:
        silent = time.time() - owner_path().stat().st_mtime
        return {**json.loads(read(owner_path()) or ""), "silent": round(silent, 1)}
    except (OSError, ValueError, TypeError):
        return None
