"""Start the workers of this machine: one process per worker, with the variables that `torchrun` sets.

Unlike torchrun it waits for the workers' checkpoints after SIGTERM as long as they take, and passes on their exit code.
Needs no torch.
"""

import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from types import FrameType

from trm.errors import UserError

STOPPED = (75, 130, 143)
"""Exit codes of workers that stopped with a checkpoint: time limit, SIGINT, SIGTERM."""
GRACE_SECONDS = 20.0
"""Time for the others to notice a dead worker; a worker that waits in NCCL never does."""


STORE = "TRM_WORKERS_STORE"
"""Environment variable: the file by which the workers of one machine find each other, in place of a port."""


def run_workers(count: int, command: Sequence[str], nodes: int = 1, grace: float = GRACE_SECONDS) -> int:
    """Run `command` in `count` processes, ranks 0 to `count - 1`, and wait for all of them.

    Of several Slurm nodes each runs this function, started by srun, and its own share of the processes.

    Returns the exit code of the first worker that failed, else of this machine's first. If a worker dies, the others
    are killed after `grace` seconds, with a message on stderr.

    Raises:
        UserError: the nodes do not divide the processes, or srun did not start this one.
    """
    local, first = count // nodes, 0
    shared = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(local)}
    meeting = None
    if nodes > 1:
        first, address, port = _place_among(nodes, count)
        shared |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    else:
        meeting = tempfile.mkdtemp(prefix="trm-workers-")  # of this user alone, which no port is
        shared |= {"MASTER_ADDR": "127.0.0.1", STORE: f"{meeting}/store"}
    ranks = [{"RANK": str(first + rank), "LOCAL_RANK": str(rank)} for rank in range(local)]
    workers: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: FrameType | None) -> None:
        for worker in workers:
            worker.send_signal(number)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    previous = {number: signal.signal(number, forward) for number in numbers}
    try:
        workers += [subprocess.Popen(command, env={**os.environ, **shared, **rank}) for rank in ranks]
        return _wait(workers, first, count, grace)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for worker in workers:
            worker.kill()
            worker.wait()
        if meeting:
            shutil.rmtree(meeting)


def _place_among(nodes: int, count: int) -> tuple[int, str, int]:
    """First rank of this node, and address and port of the first node's first worker. All nodes find the same ones."""
    node, names, job = (
        os.environ.get(name, "") for name in ("SLURM_NODEID", "SLURM_NODELIST", "SLURM_JOB_ID")
    )
    if count % nodes:
        raise UserError(f"--workers {count} is not a multiple of --nodes {nodes}")
    if not (node and names and job) or os.environ.get("SLURM_NNODES") != str(nodes):
        raise UserError(
            f"--nodes {nodes}: start this command with `srun --nodes={nodes} --ntasks-per-node=1` in Slurm"
        )
    host = _scontrol("hostnames", names).split()[0]
    found = re.search(r"NodeAddr=(\S+)", _scontrol("node", host))
    return int(node) * count // nodes, found[1] if found else host, 20_000 + int(job) % 10_000


def _scontrol(*words: str) -> str:
    try:
        command = ["scontrol", "show", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"scontrol does not say where this job's nodes are: {error}") from error


def _wait(workers: list[subprocess.Popen[bytes]], first: int, count: int, grace: float) -> int:
    failed: tuple[int, int] | None = None
    deadline = math.inf
    while True:
        codes = [worker.poll() for worker in workers]
        if failed is None:
            failed = next(((c, rank) for rank, c in enumerate(codes) if c not in (None, 0, *STOPPED)), None)
            deadline = time.monotonic() + grace if failed else math.inf
        if None not in codes or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    code, rank = failed or (codes[0] or 0, 0)
    if code >= 0:
        return code
    print(
        f"worker {first + rank} of {count} died ({signal.Signals(-code).name}), so the job ends; start it again "
        "to resume from its last checkpoint",
        file=sys.stderr,
        flush=True,
    )
    return 1
