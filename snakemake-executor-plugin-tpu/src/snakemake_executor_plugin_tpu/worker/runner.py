"""The runner of one task: it outlives the loop, enforces runtime and fence, and leaves no process behind.

The runner is started with the lock of the task's folder, so that there is no moment in which nobody has it.
"""

import contextlib
import ctypes
import fcntl
import io
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from .files import EXIT_BYTES, LEAST_DISK, Task, free_disk, read_json, write_json
from .tpurun import digests

PR_SET_CHILD_SUBREAPER = 36
SHUTDOWN_SECONDS = 2.0
"""A shutdown signals the job as well, which may end before its runner hears of it."""
STACKS_SECONDS = 5.0
KILL_SECONDS = 30.0
CODE = Path(__file__).resolve().parents[2]
PACKAGE = Path(__file__).resolve().parents[1].name
TPURUN = """#!/bin/sh
exec "{python}" -Ic 'import sys; sys.path.insert(0, "{code}")
from {package}.worker.tpurun import main; sys.exit(main(sys.argv[1:]))' "$@"
"""


def start(task: Task, spec: dict[str, Any], environment: dict[str, str], sources: "bytes | None") -> None:
    """Make the task's folder and start its runner; `environment` is added to this process's own."""
    folder = task.folder
    for part in ("work", "bin", "scratch"):
        (folder / part).mkdir(parents=True, mode=0o700)
    if sources:
        with tarfile.open(fileobj=io.BytesIO(sources)) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extraction_filter = tarfile.data_filter
            tar.extractall(folder / "work")
    (folder / "bin" / "tpurun").write_text(TPURUN.format(python=sys.executable, code=CODE, package=PACKAGE))
    (folder / "bin" / "tpurun").chmod(0o700)
    for name in ("log", "fence"):
        (folder / name).touch()
    (folder / "exit").write_bytes(b"\0" * EXIT_BYTES)
    write_json(folder / "spec", spec)
    alive = os.open(folder / "alive", os.O_CREAT | os.O_RDWR)
    fcntl.flock(alive, fcntl.LOCK_EX)
    environment = {**{key: value for key, value in os.environ.items() if key != "PYTHONPATH"}, **environment}
    path = [str(folder / "bin"), *spec["path"], environment.get("PATH", os.defpath)]
    environment |= {"PATH": os.pathsep.join(path), "TPU_AGENT": str(CODE / PACKAGE)}
    environment |= {"TPU_TASK_FOLDER": str(folder), "TPU_SCRATCH": str(folder / "scratch")}
    for name in ("progress", "status", "again"):
        environment[f"TPU_{name.upper()}_FILE"] = str(folder / name)
    write_json(folder / "base", digests(environment))
    argv = [sys.executable, "-m", f"{PACKAGE}.worker.runner", task.name]
    own: dict[str, Any] = {"env": {**os.environ, "PYTHONPATH": str(CODE)}, "pass_fds": [alive]}
    own |= {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(argv, start_new_session=True, **own)
    assert process.stdin
    with process.stdin as pipe:  # not a file: the variables are secret
        pipe.write(json.dumps(environment).encode())
    os.close(alive)


def tree(pid: int) -> list[int]:
    """Return the living processes below pid, in any session."""
    children: dict[int, list[int]] = {}
    found: list[int] = []
    queue = [pid]
    for number, parent in _parents():
        children.setdefault(parent, []).append(number)
    while queue:
        below = children.get(queue.pop(), [])
        found, queue = found + below, queue + below
    return found


def _parents() -> "list[tuple[int, int]]":
    """Return each living process with its parent."""
    if not Path("/proc/self/stat").exists():  # macOS, where the emulator runs as well
        lines = subprocess.run(
            ["ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True
        ).stdout.splitlines()
        return [(int(a), int(b)) for a, b, state in map(str.split, lines) if not state.startswith("Z")]
    pairs = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            stat = Path("/proc", entry, "stat").read_text(errors="replace")
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state != "Z":
                pairs.append((int(entry), int(parent)))
    return pairs


def end_orphans(task: Task) -> None:
    """Kill what a task has left whose runner was killed: all that has its folder in the environment (on Linux)."""
    mark = os.fsencode(f"\0TPU_TASK_FOLDER={task.folder}\0")
    deadline, quiet = time.monotonic() + KILL_SECONDS, 0
    while quiet < 3 and time.monotonic() < deadline:  # while it starts a program a process has no environment
        quiet += 1
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in b"\0" + path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    quiet = 0
        time.sleep(0.01)


def _die_first() -> None:
    """Let the kernel take the job when memory is short, not its runner or the loop."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def clear_libtpu_lock(lock: "Path | None" = None) -> bool:
    """Remove the lock file that a killed process left, unless a living one holds it: libtpu locks it by lockf."""
    lock = lock or Path(tempfile.gettempdir(), "libtpu_lockfile")
    try:
        with open(lock, "r+", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.unlink()
            return True
    except OSError:
        return False


class Runner:
    """Starts the command of one task, stops it on request, at its runtime or by the fence, and notes its end."""

    def __init__(self, task: Task, environment: dict[str, str]) -> None:
        self.task, self.folder, self.environment = task, task.folder, environment
        self.spec: dict[str, Any] = read_json(task.folder / "spec")
        self.code: int | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.shutting_down = False

    def run(self) -> None:
        started, grace = time.time(), 1.0
        try:
            self._prepare()
            self._start()
            why, grace = self._supervise()
        except Exception as error:
            self.code, why = 127, "exited"
            self._log(f"it could not be started: {type(error).__name__}: {error}")
        # SIGTERM once per process: jobs treat a second one as a request to stop at once.
        self._signal_until_gone(signal.SIGTERM, grace)
        self._signal_until_gone(signal.SIGKILL, KILL_SECONDS)
        self._reap()
        clear_libtpu_lock()
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)
        code = 137 if self.code is None else self.code
        if code and why == "exited":
            why = self._excuse()
        if free_disk() < LEAST_DISK:  # the loop needs room to tell of the end
            shutil.rmtree(self.folder / "work", ignore_errors=True)
        self.task.write_exit({"code": code, "why": why, "started": started, "ended": time.time()})

    def _excuse(self) -> str:
        """Return why a failure is none of the job, or `exited`."""
        if (self.folder / "again").exists():
            return "again"
        if free_disk() < LEAST_DISK:
            return "disk full"
        return "exited"

    def _prepare(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # orphans become children of this process
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.wakeup, wakeup_write = os.pipe()
        for descriptor in (self.wakeup, wakeup_write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, *_: Any) -> None:
        self.shutting_down = True  # a preemption begins like this

    def _start(self) -> None:
        clear_libtpu_lock()  # its last owner may have died together with its runner
        directory = self.folder / "work" / self.spec.get("directory", ".")
        directory.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "log", "ab", buffering=0) as log:
            nothing = subprocess.DEVNULL
            outside: dict[str, Any] = {"cwd": directory, "env": self.environment, "start_new_session": True}
            outside |= {"preexec_fn": _die_first}
            self.process = subprocess.Popen(
                self.spec["argv"], stdin=nothing, stdout=log, stderr=log, **outside
            )

    def _supervise(self) -> tuple[str, float]:
        """Wait for the end of the command; return why it ends, and how long what is left may go on."""
        self.deadline = time.monotonic() + (self.spec.get("runtime") or float("inf"))
        self.stamp, self.touched = 0, time.monotonic()
        while True:
            if self._reap() is not None:
                self._await_shutdown()
                return "shutdown" if self.shutting_down and self.code else "exited", 1.0
            if stop := self._reason_to_stop():
                self._log(f"stopping the job: {stop['why']}")
                if stop.get("stacks"):
                    self._show_stacks(float(stop["stacks"]))
                return str(stop["why"]), float(stop.get("grace", self.spec["grace"]))
            self._wait(0.5)

    def _await_shutdown(self) -> None:
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        while self.code in (129, 137, 143) and not self.shutting_down and time.monotonic() < deadline:
            self._wait(0.1)

    def _wait(self, seconds: float) -> None:
        select.select([self.wakeup], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wakeup, 4096)

    def _reap(self) -> "int | None":
        """Collect ended children; return the command's exit code once it has ended."""
        # Popen.wait would report success for a process that `waitpid(-1)` had collected before.
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if self.process is not None and ended[0] == self.process.pid:
                    code = self.process.returncode = os.waitstatus_to_exitcode(ended[1])
                    self.code = code if code >= 0 else 128 - code
        return self.code

    def _reason_to_stop(self) -> "dict[str, Any] | None":
        if self.shutting_down:
            return {"why": "shutdown"}
        if stop := read_json(self.folder / "stop"):
            return dict(stop)
        now, stamp = time.monotonic(), (self.folder / "fence").stat().st_mtime_ns
        if stamp != self.stamp:
            self.stamp, self.touched = stamp, now
        if now > self.deadline:
            return {"why": "runtime"}
        if now - self.touched > float(self.spec["fence"]):
            return {"why": "fence"}
        return None

    def _show_stacks(self, frozen_for: float) -> None:
        """Let the job's Python processes write their stacks to the log, which ends them.

        PYTHONFAULTHANDLER handles SIGABRT even within a call that never returns; Snakemake and tpurun are left out.
        The hosts see the stop at different times, so every rank is frozen first: one that lives on fails without its
        stacks once another has gone. So is tpurun: it would send SIGTERM to rank 0, which kills before the stacks.
        """
        below = tree(os.getpid())
        frozen = [pid for pid in below if _shows_stacks(pid)]
        starters = [pid for pid in below if b"tpurun" in _command(pid)]
        self._signal(signal.SIGSTOP, [*starters, *frozen])
        deadline = time.monotonic() + frozen_for
        while time.monotonic() < deadline:
            self._wait(0.1)
        self._signal(signal.SIGABRT, frozen)
        self._signal(signal.SIGCONT, frozen)
        deadline = time.monotonic() + STACKS_SECONDS
        while set(frozen) & set(tree(os.getpid())) and time.monotonic() < deadline:
            self._wait(0.05)
            self._reap()
        self._signal(signal.SIGCONT, starters)

    def _signal(self, number: int, pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _signal_until_gone(self, number: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._signal(number, tree(os.getpid()))
        while (left := tree(os.getpid())) and time.monotonic() < deadline:
            self._wait(0.05)
            self._reap()
            if number == signal.SIGKILL:
                self._signal(number, left)

    def _log(self, sentence: str) -> None:
        with contextlib.suppress(OSError), open(self.folder / "log", "ab") as log:
            log.write(f"\n[pod] {sentence}\n".encode())


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _shows_stacks(pid: int) -> bool:
    command = _command(pid)
    with contextlib.suppress(OSError, IndexError):
        caught = int(Path(f"/proc/{pid}/status").read_text().split("SigCgt:")[1].split()[0], 16)
        handles = bool(caught >> (signal.SIGABRT - 1) & 1)
        return handles and b"snakemake_job.py" not in command and b"tpurun" not in command
    return False


def main() -> int:
    """Run the task whose name is the argument; its variables are on stdin."""
    environment = json.loads(sys.stdin.buffer.read())
    Runner(Task(sys.argv[1]), environment).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
