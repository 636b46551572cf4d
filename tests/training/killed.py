"""Run `trm train` again and again in forked children, each of which sends itself SIGKILL at a random moment.

    python -m tests.training.killed KILLS SEED ARGUMENTS...      (the arguments of `python -m trm`)

A moment is a number of Python and C calls, so a kill can hit anything: reading a checkpoint, a step, the gap between
writing a file and renaming it. A first child measures how many calls a start and a step take; half of the others then
die during their start, the other half within two steps of their first one. Each kill is printed; the last child runs
to the end, and its exit code is ours.
"""

import os
import random
import signal
import sys
from collections.abc import Callable
from types import FrameType

import torch

from trm.backends.cpu import library
from trm.cli import main
from trm.training.loop import Trainer

STEP = Trainer._one_step.__code__


def child(arguments: list[str], hook: Callable[[bool], None] | None) -> int:
    """Exit code of the command, run in a child; `hook` hears of every call, with whether it begins a step."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

    def profile(frame: FrameType, event: str, argument: object) -> None:
        hook(event == "call" and frame.f_code is STEP)

    if hook:
        sys.setprofile(profile)
    code = 99
    try:
        code = main(arguments)
    finally:
        sys.stdout.flush()
        os._exit(code)


def measure(arguments: list[str]) -> tuple[int, int]:
    """Calls before the first step of a child, and calls of its second step; the child is killed at its third."""
    reader, writer = os.pipe()
    calls, begun = 0, []

    def hook(step: bool) -> None:
        nonlocal calls
        calls += 1
        if step:
            begun.append(calls)
            if len(begun) == 3:
                os.write(writer, f"{begun[0]} {begun[2] - begun[1]}".encode())
                os.kill(os.getpid(), signal.SIGKILL)

    if child(arguments, hook) != -signal.SIGKILL:
        sys.exit("the child that measures ended before its third step")
    start, step = os.read(reader, 100).split()
    return int(start), int(step)


def kill_after(calls: int, in_steps: bool) -> Callable[[bool], None]:
    """A hook that kills after that many calls since the start, or since the first step began."""
    counting, left = not in_steps, calls

    def hook(step: bool) -> None:
        nonlocal counting, left
        counting = counting or step
        left -= counting
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


if __name__ == "__main__":
    torch.set_num_threads(1)
    library.functions()  # loaded once for all children
    kills, generator = int(sys.argv[1]), random.Random(int(sys.argv[2]))
    start, step = measure(sys.argv[3:])
    for number in range(kills):
        in_steps = bool(number % 2)
        calls = generator.randrange(1, 2 * step if in_steps else start)
        code = child(sys.argv[3:], kill_after(calls, in_steps))
        if code != -signal.SIGKILL:
            sys.exit(f"child {number} ended with {code} before its {calls} calls")
        print(f"killed {number} at call {calls} of {'its steps' if in_steps else 'its start'}", flush=True)
    sys.exit(child(sys.argv[3:], None))
