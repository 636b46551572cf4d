"""tpurun COMMAND ARGUMENT...   run the same command on all hosts of the job, one process each.

A rule writes `{resources.mpi} python train.py ...` with `mpi="tpurun"`; inside the job this program is on PATH. It
runs the command as rank 0 and writes it to the bucket, where the job's other hosts find it. Every rank gets RANK,
WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The first rank that fails ends all of them, and
this program exits with its code.
"""

import contextlib
import fcntl
import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .bucket import Bucket, seal
from .files import read_json, root

# Variables of one host or one shell, which the other ranks must not get.
LOCAL_VARIABLES = {"HOME", "PWD", "OLDPWD", "SHLVL", "_", "HOSTNAME"}
AGAIN = 75


def rank_variables(rank: int, size: int, address: str, port: int) -> dict[str, str]:
    """Return the variables from which torch.distributed and others start."""
    ranks = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return {**ranks, "MASTER_ADDR": address, "MASTER_PORT": str(port)}


def digests(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a digest of each variable: enough to see later what the job has exported, and no secret."""
    return {
        key: hashlib.sha256(value.encode(errors="replace")).hexdigest() for key, value in environment.items()
    }


def exported(base: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return what the job has exported since its start: the other ranks need it as well."""
    changed = {key for key, digest in digests(now).items() if base.get(key) != digest}
    return {key: now[key] for key in changed - LOCAL_VARIABLES}


def free_port() -> int:
    """Return a free port below Linux's range for outgoing connections (32768 and up), which could occupy it."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


def end(process: "subprocess.Popen[bytes]", grace: float) -> None:
    process.terminate()
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Run:
    """One run of a command on all hosts of the job, the `number`-th of its launch."""

    def __init__(self, folder: Path, number: int) -> None:
        orders = read_json(root() / "orders.json")
        self.folder, self.size = folder, int(os.environ["TPURUN_SIZE"])
        self.grace, self.poll = float(os.environ["TPURUN_GRACE"]), float(orders["times"]["poll"])
        self.address, self.key = str(orders["address"]), bytes.fromhex(orders["key"])
        patience = float(os.environ["TPURUN_PATIENCE"])
        self.bucket = Bucket(orders["bucket"], self.key, patience=patience, tell=self.say)
        self.path = f"{os.environ['TPURUN_RUNS']}/{number}"

    def say(self, sentence: str) -> None:
        print(f"[tpurun] {sentence}", file=sys.stderr, flush=True)

    def start(self, argv: list[str]) -> "subprocess.Popen[bytes]":
        """Tell the other hosts what to run, and start rank 0."""
        port = free_port()
        variables = exported(read_json(self.folder / "base", {}), os.environ)
        request: dict[str, Any] = {"argv": argv, "address": self.address, "port": port}
        request["directory"] = os.path.relpath(os.getcwd(), self.folder / "work")
        request |= seal(self.key, variables)
        self.bucket.create(self.path, request)
        environment = {**os.environ, **rank_variables(0, self.size, self.address, port)}
        return subprocess.Popen(argv, env=environment)

    def wait(self, process: "subprocess.Popen[bytes]") -> int:
        """Return the code of the first rank that fails, 0 once all ranks have ended well."""
        waiting = list(range(1, self.size))
        while True:
            code = process.poll()
            if code:
                code = code if code > 0 else 128 - code
                # Written by the host as well, should this process be killed first.
                self.bucket.create(f"{self.path}/end", {"rank": 0, "code": code, "why": "exited"})
                return code
            if code == 0 and waiting and self.bucket.read(f"{self.path}/exit-{waiting[0]}"):
                waiting.pop(0)
                continue
            if found := self.bucket.read(f"{self.path}/end"):
                end(process, self.grace)
                return self._ended(found)
            if code == 0 and not waiting:
                return 0
            time.sleep(self.poll)

    def _ended(self, found: dict[str, Any]) -> int:
        if found["why"] == "exited":
            self.say(f"rank {found['rank']} failed with exit code {found['code']}")
            return int(found["code"])
        self.say(f"rank {found['rank']} ended: {found['why']}")
        (self.folder / "again").write_text(f"rank {found['rank']}: {found['why']}")
        return AGAIN


def run_on_all(argv: list[str], folder: Path) -> int:
    """Run rank 0 here and the others elsewhere; return the exit code of the first rank that fails, or 0."""
    with open(folder / "tpurun", "w") as alone:
        try:
            fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("[tpurun] another tpurun of this job still runs: run one after the other", file=sys.stderr)
            return 2
        number = 1 + len(list(folder.glob("run-*")))
        (folder / f"run-{number}").touch()
        run = Run(folder, number)
        # The runner signals every process of the task including rank 0; this one waits.
        signal.signal(signal.SIGTERM, lambda *_: None)
        return run.wait(run.start(argv))


def main(argv: list[str]) -> int:
    """Run the command; on one host this process becomes the command itself."""
    if not argv:
        print(__doc__, file=sys.stderr)
        return 2
    folder, size = os.environ.get("TPU_TASK_FOLDER"), int(os.environ.get("TPURUN_SIZE", "1"))
    if size > 1 and folder is not None:
        return run_on_all(argv, Path(folder))
    os.environ.update(rank_variables(0, 1, "localhost", free_port()))
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"[tpurun] cannot run {argv[0]}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
