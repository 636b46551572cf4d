"""Run `trm train` again and again in forked children, each of which sends itself SIGKILL at a random moment.

    python -m tests.training.killed KILLS SEED ARGUMENTS...      (the arguments of `python -m trm`)

A moment is a Python or C call, so a kill can hit anything: reading a checkpoint, a step, the gap between writing a file
and renaming it. Every second child may die during its start; the others die in their steps. Each kill is printed; the
last child runs to the end, and its exit code is ours.
"""

import os
import random
import signal
import sys
from types import FrameType

import torch

from trm.backends.cpu import library
from trm.cli import main
from trm.training.loop import Trainer

STEP = Trainer._one_step.__code__
START_CALLS, STEPS_CALLS = 50_000, 5_000
"""Calls until a kill, at the mean: a start makes about 130,000, a step with its checkpoint 4,500."""


def child(arguments: list[str], chance: random.Random | None = None, in_steps: bool = False) -> int:
    """Exit code of the command, run in a child, which `chance` kills: `in_steps`, after its first step has begun."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    phase, calls = "start", 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal phase, calls
        calls += 1
        if event == "call" and frame.f_code is STEP:
            phase = "steps"
        rare = STEPS_CALLS if phase == "steps" else START_CALLS
        if (phase == "steps" or not in_steps) and chance.random() * rare < 1:
            os.write(1, f"killed at call {calls}, in its {phase}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    if chance:
        sys.setprofile(profile)
    code = 99
    try:
        code = main(arguments)
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    torch.set_num_threads(1)
    library.functions()  # loaded once for all children
    kills, seed = map(int, sys.argv[1:3])
    for number in range(kills):
        code = child(sys.argv[3:], random.Random(seed + number), in_steps=bool(number % 2))
        if code != -signal.SIGKILL:
            sys.exit(f"child {number} ended with {code} before it was killed")
    sys.exit(child(sys.argv[3:]))
