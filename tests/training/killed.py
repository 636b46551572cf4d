"""`trm train` again and again in forked children, each of which sends itself SIGKILL at a seeded moment.

    python -m tests.training.killed KILLS SEED MOST ARGUMENTS...      (the arguments of `python -m trm`)

A moment is a number of calls of Python and C functions since the child's start, so it falls anywhere: into reading a
checkpoint, into a step, between a file's write and its renaming. Prints the number of calls before each kill; the last
child is let live, and its exit code is ours.
"""

from __future__ import annotations

import os
import random
import signal
import sys

import torch

from trm.cli import main
from trm.network.cpu import launch


def child(arguments: list[str], calls: int | None) -> int:
    """Run the command in a child that dies at the given call; -9, or its exit code where it ended before that."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    left = calls

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if calls is not None:
        sys.setprofile(count)
    code = 99
    try:
        code = main(arguments)
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    torch.set_num_threads(1)
    launch.load(torch.float32)  # a million calls, which every child would spend before its first step
    kills, seed, most = (int(word) for word in sys.argv[1:4])
    generator = random.Random(seed)
    for number in range(kills):
        calls = generator.randrange(1, most)
        code = child(sys.argv[4:], calls)
        if code != -signal.SIGKILL:
            sys.exit(f"child {number} ended with {code} before its {calls} calls")
        print(f"killed {number} at call {calls}", flush=True)
    sys.exit(child(sys.argv[4:], None))
