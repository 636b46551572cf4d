"""The supervisor: runs one task on the worker to its end, with or without a connection."""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

from .record import Record
from .tasks import Lease, list_for_all, note_activity, read, root, write_atomically, write_exit

LIBTPU_LOCK = Path("/tmp/libtpu_lockfile")
PR_SET_CHILD_SUBREAPER = 36
STACKS_SECONDS = 5.0  # in which the controller asks the other ranks


def descendants(pid: int) -> list[int]:
    """Return every living process below pid, in any session or process group."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text(errors="replace")
            except OSError:
                continue
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(entry))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def clear_libtpu_lock(lock: Path = LIBTPU_LOCK) -> bool:
    """Remove the lock file that a killed process left, unless a living one holds it: libtpu locks it by lockf."""
    try:
        with open(lock, "r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.unlink()
            return True
    except OSError:
        return False


class Supervisor:
    """Starts one task, enforces its lease, stops it on request, and leaves no process behind."""

    def __init__(self, folder: Path, spec: dict[str, Any]):
        self.folder, self.spec, self.lease = folder, spec, Lease(folder)
        self.record = Record(spec.get("record"), spec.get("about", {}), self._log)
        self.shutting_down = False
        self.progress: str | None = None
        self.code: int | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        started = time.time()
        try:
            self._prepare()
            self.record.start()
            self._start()
            code, reason = self._supervise()
        except Exception as error:
            code, reason = 127, f"the agent could not run it: {type(error).__name__}: {error}"[:300]
        self._signal_until_gone(signal.SIGTERM, 1)
        self._signal_until_gone(signal.SIGKILL, 30)
        self._reap()
        clear_libtpu_lock()
        self._forget_secrets()
        exit = {"code": code, "reason": reason, "started": started, "ended": time.time()}
        # First where it outlives this host. Somebody waits for the end of a job that was stopped.
        if reason != "stopped":
            with contextlib.suppress(Exception):
                self.record.end(self.folder / "log", exit)
        write_exit(self.folder, exit)
        if self.listed:
            Path(self.listed.name).unlink(missing_ok=True)

    def _forget_secrets(self) -> None:
        """Remove the job's variables from the disk and keep its description."""
        with contextlib.suppress(OSError):
            (self.folder / "environment.json").unlink(missing_ok=True)
            for request in (self.folder / "requests").glob("*.json"):
                request.unlink()
            write_atomically(self.folder / "spec.json", json.dumps({"about": self.spec.get("about", {})}))

    def _prepare(self) -> None:
        # Orphans of the task become children of the supervisor.
        with contextlib.suppress(OSError):
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.wakeup, wakeup_write = os.pipe()
        for descriptor in (self.wakeup, wakeup_write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        write_atomically(self.folder / "pid", str(os.getpid()))
        self.listed = list_for_all(self.folder.name, self.spec.get("about", {}))

    def _on_sigterm(self, *_: Any) -> None:
        # The worker is being shut down: a preemption begins like this.
        self.shutting_down = True

    def _start(self) -> None:
        clear_libtpu_lock()  # its last owner may have died together with its supervisor
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        if archive := self.spec.get("sources"):
            with tarfile.open(root() / "sources" / f"{archive}.tar.gz") as tar:
                if hasattr(tarfile, "data_filter"):
                    tar.extraction_filter = tarfile.data_filter
                tar.extractall(work)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SSH_")}
        environment.update(self.spec.get("environment", {}))
        path = [str(self.folder / "bin"), *self.spec.get("path", []), environment.get("PATH", os.defpath)]
        environment["PATH"] = os.pathsep.join(path)
        environment["TPU_AGENT"] = str(Path(__file__).resolve().parents[1])
        environment["TPU_TASK_FOLDER"] = str(self.folder)
        for name in ("PROGRESS_FILE", "STATUS_FILE", "AGAIN_FILE", "SCRATCH"):
            environment[f"TPU_{name}"] = str(self.folder / name.removesuffix("_FILE").lower())
        (self.folder / "scratch").mkdir(exist_ok=True)
        # `tpurun` compares with this to find what the job exported.
        write_atomically(self.folder / "environment.json", json.dumps(environment))
        directory = work / self.spec.get("directory", ".")
        directory.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "log", "ab", buffering=0) as log:
            self.process = subprocess.Popen(
                self.spec["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
                env=environment,
                start_new_session=True,
            )

    def _supervise(self) -> tuple[int, str]:
        self.started = self.moved = time.monotonic()
        while True:
            note_activity()
            if (code := self._reap()) is not None:
                # A shutdown signals the job as well, which may end before the supervisor looks.
                if code and (self.folder / "again").exists():
                    return code, "again"
                return code, "shutdown" if self.shutting_down and code else "exited"
            if (why := self._reason_to_stop()) is not None:
                self._log(f"stopping the job: {why}")
                if why == "stalled" or (self.folder / "stacks").exists():
                    self._show_stacks(why)
                return self._stop(), why
            self._wait(1.0)

    def _wait(self, seconds: float) -> None:
        select.select([self.wakeup], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wakeup, 4096)

    def _reap(self) -> int | None:
        """Collect ended children; return the job's exit code once it has ended."""
        # Popen.wait would report success for a process that `waitpid(-1)` had collected before.
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if self.process is not None and ended[0] == self.process.pid:
                    code = self.process.returncode = os.waitstatus_to_exitcode(ended[1])
                    self.code = code if code >= 0 else 128 - code
        return self.code

    def _reason_to_stop(self) -> str | None:
        if self.shutting_down:
            return "shutdown"
        if (self.folder / "stop").exists():
            return "stopped"
        runtime = float(self.spec.get("runtime") or 0)
        if runtime and time.monotonic() > self.started + runtime:
            return "runtime"
        if self._has_stalled():
            return "stalled"
        return "lease" if self.lease.has_expired() else None

    def _has_stalled(self) -> bool:
        """Whether the job has reported nothing new for too long; a job that never reports does not stall."""
        now, stall, progress = time.monotonic(), self.spec.get("stall") or {}, read(self.folder / "progress")
        if progress != self.progress:
            self.progress, self.moved = progress, now
        limit = float(stall.get("seconds", 0)) if progress or stall.get("reports") else 0.0
        return limit > 0 and now - self.moved > limit

    def _show_stacks(self, why: str) -> None:
        """Let the job's Python processes write their stacks to the log, which ends them.

        PYTHONFAULTHANDLER handles SIGABRT even within a call that never returns; Snakemake itself is left out. Every
        rank is frozen first: one that lives on fails without its stacks once another has gone.
        """
        frozen = []
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError, IndexError):
                caught = Path(f"/proc/{pid}/status").read_text().split("SigCgt:")[1].split()[0]
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if int(caught, 16) >> (signal.SIGABRT - 1) & 1 and b"snakemake_job.py" not in command:
                    os.kill(pid, signal.SIGSTOP)
                    frozen.append(pid)
        if why != "stalled" or any((self.folder / "requests").iterdir()):
            (self.folder / "stalled").touch()
            time.sleep(STACKS_SECONDS)
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT)
                os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + STACKS_SECONDS
        while set(frozen) & set(descendants(os.getpid())) and time.monotonic() < deadline:
            self._wait(0.05)

    def _stop(self) -> int:
        grace = float(read(self.folder / "stop") or self.spec.get("grace", 10))
        # SIGTERM once per process: jobs treat a second one as a request to stop at once.
        self._signal_until_gone(signal.SIGTERM, grace)
        self._signal_until_gone(signal.SIGKILL, 30)
        deadline = time.monotonic() + 10
        while self._reap() is None and time.monotonic() < deadline:
            self._wait(0.1)
        return 137 if self.code is None else self.code

    def _signal_all(self, number: int) -> None:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _signal_until_gone(self, number: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._signal_all(number)
        while descendants(os.getpid()) and time.monotonic() < deadline:
            self._wait(0.05)
            if number == signal.SIGKILL:
                self._signal_all(number)

    def _log(self, sentence: str) -> None:
        with contextlib.suppress(OSError), open(self.folder / "log", "ab") as log:
            log.write(f"\n[agent] {sentence}\n".encode())
