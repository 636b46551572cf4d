"""Measures what a training step costs the host: placing a batch and launching the compiled program.

A host serves four chips, so for slices of several hosts this runs in a process with four virtual devices:

    python -m trm.checks.tpu_check.launching ARGUMENTS RESULTS ROWS CELLS SYMBOLS
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trm.study.slices import Slice

if TYPE_CHECKING:
    from torch import Tensor

    from trm.backends.base import Backend

LAUNCHES = 50


def host_batch(rows: int, cells: int, symbols: int) -> tuple[Tensor, ...]:
    """A host batch of zeros with the shapes of `trm.training.feed`."""
    import torch

    return (
        torch.zeros(rows, dtype=torch.int32),
        torch.zeros(rows, symbols, dtype=torch.uint8),
        torch.zeros(rows, cells, dtype=torch.int32),
        torch.zeros(rows, dtype=torch.int32),
    )


def launch_seconds(
    arguments: int, results: int, sizes: tuple[int, int, int], where: Slice, backend: Backend
) -> float:
    """Seconds that a host takes to place a batch of (rows, cells, symbols) on its chips and to launch a program with
    that many arguments and results: the shortest of several, on this machine."""
    if where.hosts == 1:
        return _measure(arguments, results, host_batch(*sizes), backend)
    numbers = [str(number) for number in (arguments, results, *sizes)]
    command = [sys.executable, "-m", "trm.checks.tpu_check.launching", *numbers]
    env = {**os.environ, "CPU_NUM_DEVICES": str(where.chips // where.hosts)}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise RuntimeError(
            f"the host's launch time was not measured: {(done.stderr.splitlines() or ['?'])[-1]}"
        )
    return float(done.stdout.split()[-1])


def _measure(arguments: int, results: int, batch: Sequence[Tensor], backend: Backend) -> float:
    """Same as `launch_seconds`, on the backend's devices, with a program that computes next to nothing."""
    import torch

    from trm.backends.tpu.replay import Replay

    state = [backend.place(torch.zeros(1)) for _ in range(results)]
    given = [backend.place(torch.ones(1)) for _ in range(max(1, arguments - results))]

    def step() -> None:
        for tensor in state:
            tensor.add_(given[0])
        for tensor in given[1:]:
            state[0].add_(tensor)

    replay, times = Replay(step, state, given), []
    for _ in range(LAUNCHES):
        backend.synchronize()
        started = time.perf_counter()
        for tensor in batch:
            backend.place_rows(tensor, 0)
        replay.run(given)
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    from trm.backends.tpu.device import XlaBackend

    arguments, results, *sizes = map(int, sys.argv[1:])
    print(_measure(arguments, results, host_batch(*sizes), XlaBackend()))


if __name__ == "__main__":
    main()
