"""The hosts of the emulated pod: each is a group of processes with its own folder, boots and metadata server."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from .metadata import MetadataServer

PROC = Path("/proc")


def dying_with_us() -> tuple[str, ...]:
    """Return a command prefix that ends the command together with this process, where the system has one."""
    return ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()


def processes_with(mark: str) -> dict[int, str]:
    """Return the command lines of the processes that have this variable (NAME=VALUE) in their environment."""
    found = {}
    if not PROC.joinpath("self").exists():  # macOS
        listing = subprocess.run(["ps", "-axEwwo", "pid=,command="], capture_output=True, text=True).stdout
        lines = [line.split(maxsplit=1) for line in listing.splitlines()]
        return {int(pid): line for pid, line in lines if f" {mark} " in f"{line} "}
    wanted = f"\0{mark}\0".encode()
    for entry in filter(str.isdigit, os.listdir(PROC)):
        with contextlib.suppress(OSError):
            if wanted in b"\0" + (PROC / entry / "environ").read_bytes():
                line = (PROC / entry / "cmdline").read_text(errors="replace")
                found[int(entry)] = line.replace("\0", " ").strip()
    return found


def send(number: int, pids: Any) -> None:
    """Send a signal to each of these processes that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


WATCH = """
import os, sys, time
sys.stdin.buffer.read()
mark, left = os.fsencode(f"\\0HOME={sys.argv[1]}/"), True
while left:
    left = False
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in b"\\0" + open(f"/proc/{pid}/environ", "rb").read():
                left = True
                os.kill(int(pid), 9)
        except OSError:
            pass
    time.sleep(0.05)
"""


def watch(folder: Path) -> "subprocess.Popen[bytes]":
    """Start what ends the hosts below a folder once this process has ended, however that happens (Linux)."""
    program = [sys.executable, "-I", "-S", "-c", WATCH, str(folder)]
    return subprocess.Popen(program, stdin=subprocess.PIPE, start_new_session=True)


class Host:
    """One host of the pod. Its processes are those with its HOME."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        metadata: MetadataServer,
        environment: dict[str, str],
        disk_mb: int | None,
    ):
        self.folder, self.rank, self.metadata, self.disk_mb = folder, rank, metadata, disk_mb
        self.environment = {
            **environment,
            "HOME": str(self.home),
            "TMPDIR": str(folder / "tmp"),
            "GCE_METADATA_HOST": f"127.0.0.1:{metadata.server_port}",
        }
        self.is_up = self.deaf = False
        self.boots, self.lock = 0, threading.RLock()
        """The number of the last boot, and the lock of boots and ends: these come from several threads."""
        self.process: subprocess.Popen[bytes] | None = None
        self.brake: tuple[threading.Thread, threading.Event] | None = None

    @property
    def home(self) -> Path:
        """Return the home folder of the host's user."""
        return self.folder / "home"

    @property
    def serial(self) -> str:
        """Return what the startup scripts have written to the serial console."""
        return (self.folder / "serial.log").read_text(errors="replace")

    def boot(self, node: Any = None) -> None:
        """Start the host and its startup script; with a node as a new host with an empty disk."""
        with self.lock:
            self._boot(node)

    def _boot(self, node: Any) -> None:
        self.kill()
        self.boots += 1
        if node is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.metadata.node = node
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)
        for folder in (self.home, self.folder / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        self.is_up = True
        if self.deaf:  # the machine runs, and its startup script hangs or is not there
            return
        script = self.folder / "startup-script"
        script.write_text(dict(self.metadata.node.metadata).get("startup-script", "#!/bin/sh\n"))
        script.chmod(0o700)
        command = [str(script)]
        if self.disk_mb:
            disk = f"mount -t tmpfs -o size={self.disk_mb}m tmpfs {self.home} && exec {script}"
            command = [*own_mounts(), "sh", "-c", disk]
        with open(self.folder / "serial.log", "ab") as log:
            self.process = subprocess.Popen(
                [*dying_with_us(), *command],
                cwd="/",
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, boot: int | None = None) -> None:
        """End every process of the host at once, as a power failure does, if this is (still) its last boot."""
        with self.lock:
            if boot in (None, self.boots):
                self._kill()

    def _kill(self) -> None:
        self.release()
        quiet = 0
        while quiet < 3:  # a process has no environment for a moment while it starts a program
            send(signal.SIGKILL, pids := self.processes())
            quiet = 0 if pids else quiet + 1
            time.sleep(0.01)
        if self.process is not None:
            self.process.wait()
            self.process = None
        self.is_up = False

    def shut_down(self, notice: float, boot: int | None = None) -> None:
        """End a boot (the last) as a preemption does: SIGTERM to every process, and SIGKILL some seconds later."""
        boot = self.boots if boot is None else boot
        with self.lock:
            if boot == self.boots:
                send(signal.SIGTERM, self.processes())
        deadline = time.monotonic() + notice
        while time.monotonic() < deadline and boot == self.boots and self.processes():
            time.sleep(0.02)
        self.kill(boot)

    def processes(self, words: str = "") -> dict[int, str]:
        """Return the command lines of the host's processes, of those that contain these words."""
        return {pid: line for pid, line in processes_with(f"HOME={self.home}").items() if words in line}

    def loops(self) -> dict[int, str]:
        """Return the processes that wait for jobs, without those of jobs."""
        return self.processes("worker.loop")

    def jobs(self) -> dict[int, str]:
        """Return the processes of jobs and their runners."""
        ours = ("startup-script", "worker.loop")
        found = self.processes().items()  # without a line while it ends
        return {pid: line for pid, line in found if line and not any(word in line for word in ours)}

    def freeze(self) -> None:
        """Stop every process of the host, as a kernel that hangs or a live migration does."""
        for _ in range(2):  # what was forked meanwhile
            send(signal.SIGSTOP, self.processes())

    def release(self) -> None:
        """Let a frozen or slow host go on."""
        if self.brake is not None:
            thread, stop = self.brake
            stop.set()
            thread.join()
            self.brake = None
        send(signal.SIGCONT, self.processes())

    def slow_down(self, factor: float, period: float = 0.2) -> None:
        """Let the host's jobs run only one of `factor` parts of the time."""
        stop = threading.Event()

        def brake() -> None:
            while not stop.is_set():
                pids = list(self.jobs())
                send(signal.SIGSTOP, pids)
                stop.wait(period * (1 - 1 / factor))
                send(signal.SIGCONT, pids)
                stop.wait(period / factor)

        self.release()
        self.brake = threading.Thread(target=brake, daemon=True), stop
        self.brake[0].start()

    def kill_loop(self) -> bool:
        """Kill the process that waits for jobs; return whether there was one."""
        pids = self.loops()
        send(signal.SIGKILL, pids)
        return bool(pids)

    def disk(self, name: str) -> Path:
        """Return the path on this machine of a file below the host's home folder."""
        pid = next(iter(self.processes()), None)
        own = self.disk_mb and pid and PROC / str(pid) / "root"
        return Path(f"{own}{self.home}" if own else self.home, name)

    def fill_disk(self, name: str = "filler") -> None:
        """Fill the host's own disk with a file below the home folder."""
        assert self.disk_mb, "only a host with its own disk can be filled"
        path = self.disk(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))


def own_mounts() -> list[str]:
    """Return a command prefix that runs a command with mounts of its own, [] where the system allows none."""
    users = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    prefix = ["unshare", *users, "--mount", "--propagation", "private"]
    if sys.platform != "linux" or not shutil.which("unshare"):
        return []
    return [] if subprocess.run([*prefix, "true"], capture_output=True).returncode else prefix
