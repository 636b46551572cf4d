"""Starts a task: its private folder, and a supervisor that outlives the connection."""

import contextlib
import fcntl
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, TextIO

from .supervisor import Supervisor
from .tasks import EXIT_BYTES, task_folder


def create(name: str, spec: dict[str, Any]) -> bool:
    """Start a task under its own supervisor; return False if it exists already."""
    folder = task_folder(name)
    if folder.exists():
        return False
    new = folder.with_name(f".new-{name}-{os.getpid()}")
    shutil.rmtree(new, ignore_errors=True)
    try:
        alive = _fill(new, spec)
        try:
            # The rename creates the task: of two starters only one succeeds.
            os.rename(new, folder)
        except OSError:
            alive.close()
            if folder.is_dir():
                return False
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            devnull = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(devnull, descriptor)
            with contextlib.suppress(BaseException):
                Supervisor(folder, spec).run()
        os._exit(0)
    os.wait()
    alive.close()
    return True


def _fill(folder: Path, spec: dict[str, Any]) -> TextIO:
    """Fill a new task's folder and return the locked file that its supervisor inherits."""
    for part in (folder, folder / "bin", folder / "requests"):
        part.mkdir(parents=True)
    tpurun = folder / "bin" / "tpurun"
    program = Path(__file__).with_name("tpurun.py")
    tpurun.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{program}" "$@"\n')
    tpurun.chmod(0o700)
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "lease").write_text(str(spec.get("lease", 0)))
    (folder / "log").touch()
    (folder / "exit").write_bytes(b"\0" * EXIT_BYTES)
    alive = open(folder / "alive", "w")  # noqa: SIM115 (held until the supervisor ends)
    fcntl.flock(alive, fcntl.LOCK_EX)
    return alive
