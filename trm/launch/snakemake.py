"""`python -m trm study run`: Snakemake, once any other run in this folder has ended."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import psutil  # type: ignore[import-untyped]

from trm.launch import console, lock
from trm.pipeline.settings import EVENTS, parse_overrides
from trm.study.reading import read_yaml

DRY = re.compile(r"-[npqFk]*n[npqFk]*|--dry-?run")
"""Arguments by which Snakemake only plans."""
PERIOD = 0.25
"""Seconds between two reads of the events."""


def with_config(arguments: list[str], pairs: list[str], point: str | None = None) -> list[str]:
    """Snakemake's arguments with `--set` pairs and `--point` in its `--config`, joined with a `--config` that is there
    already (Snakemake takes only the last one, and fails at a target behind it). UserError: a pair is not
    section.key=value."""
    parse_overrides(pairs)  # refused here, before Snakemake starts
    end = arguments.index("--") if "--" in arguments else len(arguments)
    arguments, targets = arguments[:end], arguments[end:]
    kept, config, inside = [], [], False
    for word in arguments:
        if word in ("--config", "-C"):
            inside = True
        elif word.startswith("--config="):
            config.append(word.removeprefix("--config="))
            inside = False
        elif inside and "=" in word and not word.startswith("-"):
            config.append(word)
        else:
            inside = False
            kept.append(word)
    own = [word.removeprefix("set=") for word in config if word.startswith("set=")]
    added = [word for word in config if not word.startswith("set=")]
    if own or pairs:
        added.append("set=" + " ".join([*own, *pairs]))
    if point:
        added.append(f"point={point}")
    return [*kept, *(["--config", *added] if added else []), *targets]


def launch(arguments: list[str]) -> int:
    """Run `snakemake ARGUMENTS` and return its exit code. Waits for another run that is still alive in this folder,
    even if its terminal was closed. UserError: the folder cannot be written, or a file of a profile cannot be read."""
    for word in arguments:
        profile = Path(word.rpartition("=")[2])
        if (profile / "config.yaml").exists():
            for path in profile.glob("*.yaml"):
                read_yaml(path)  # Snakemake would show a traceback without the file's name
    if any(map(DRY.fullmatch, arguments)):
        return _run(arguments)  # a plan waits for nobody
    with lock.wait_and_join() as handle:
        return _run(arguments, handle)


def _run(arguments: list[str], handle: TextIO | None = None) -> int:
    snakemake = Path(sys.executable).with_name("snakemake")
    shared = [handle.fileno()] if handle else []  # Snakemake shares the lock: it may outlive this process

    def start(
        environment: dict[str, str] | None = None, output: int | None = None
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [str(snakemake), *arguments],
            pass_fds=shared,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            env=environment,
            stdout=output,
            stderr=output,
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: interrupt(process))
        return process

    # Snakemake stops its jobs, and we wait for it.
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        code = _watched(start) if console.replaces_output(arguments) else start().wait()
    finally:
        signal.signal(signal.SIGINT, previous)
        signal.signal(signal.SIGTERM, terminated)
    return code if code >= 0 else 128 - code


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """What Ctrl-C in a terminal does, also after `kill` of this process alone: SIGINT to Snakemake and to its jobs in
    this process group. After a SIGTERM, Snakemake would wait until all running jobs have ended by themselves."""
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        for found in [*parent.children(recursive=True), parent]:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getpgid(found.pid) == os.getpgrp():
                    found.send_signal(signal.SIGINT)


def _watched(start: Callable[[dict[str, str], int], subprocess.Popen[bytes]]) -> int:
    """Run Snakemake behind our console; returns its exit code."""
    console.EVENTS.unlink(missing_ok=True)
    environment = os.environ | {EVENTS: str(console.EVENTS.absolute())}
    with console.OUTPUT.open("wb") as output, console.View() as view:
        signal.signal(signal.SIGINT, view.interrupt)
        process = start(environment, output.fileno())

        def terminate(number: int, frame: object) -> None:
            view.interrupt(number, frame)
            interrupt(process)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, terminate)
        while process.poll() is None:
            view.update()
            with suppress(subprocess.TimeoutExpired):
                process.wait(PERIOD)
        view.update()
    view.conclude(process.returncode)
    return process.returncode
