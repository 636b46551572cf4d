"""Start several workers on this machine: one process per worker, with the variables that `torchrun` sets.

Unlike torchrun it waits for the workers' checkpoints after SIGTERM as long as they take, and passes on their exit code.
Needs no torch.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

STOPPED = (75, 130, 143)
"""Exit codes of workers that stopped with a checkpoint: time limit, SIGINT, SIGTERM."""
GRACE_SECONDS = 20.0
"""Time for the others to notice a dead worker; a worker that waits in NCCL never does."""


def run_workers(count: int, command: Sequence[str], grace: float = GRACE_SECONDS) -> int:
    """Run `command` in `count` processes, ranks 0 to `count - 1`, and wait for all of them.

    Returns the exit code of the first worker that failed, else of rank 0. If a worker dies, the others are killed after
    `grace` seconds, with a message on stderr.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    workers: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: FrameType | None) -> None:
        for worker in workers:
            worker.send_signal(number)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    previous = {number: signal.signal(number, forward) for number in numbers}
    try:
        workers += [subprocess.Popen(command, env={**os.environ, **shared, **rank}) for rank in ranks]
        return _wait(workers, grace)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for worker in workers:
            worker.kill()
            worker.wait()


def _wait(workers: list[subprocess.Popen[bytes]], grace: float) -> int:
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
        f"worker {rank} of {len(workers)} died ({signal.Signals(-code).name}), so the job ends; start it again "
        "to resume from its last checkpoint",
        file=sys.stderr,
        flush=True,
    )
    return 1
