"""Prepares the Python environment of the jobs on a worker, once for each lock file.

The environment's name is the hash of what it is made of, so a changed lock file makes another one and an unchanged
one is never built twice. The request is {"name", "lock", "python"}; frames tell how far it has come.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .agent import MAGIC, read_line, send
from .tasks import TASK_NAME, root


def prepare(name: str, lock: str, python: str) -> Path:
    """Build the environment unless it is complete, and return its folder."""
    if not TASK_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no environment name")
    folder = root() / "environments" / name
    folder.parent.mkdir(exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if (folder / "complete").exists():
            os.utime(folder)
            return folder
        # A half-built one is what a preemption left.
        shutil.rmtree(folder, ignore_errors=True)
        _run([python, "-m", "venv", str(folder)])
        requirements = folder / "requirements.lock"
        requirements.write_text(lock)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
        _run([*install, "--no-input", "--progress-bar", "off", "-r", str(requirements)])
        (folder / "complete").touch()
    return folder


def _run(argv: list[str]) -> None:
    if shutil.which(argv[0]) is None:
        raise RuntimeError(
            f"there is no {argv[0]} on this host: set tpu-environment-python to a Python that is"
        )
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    tail: list[str] = []
    for line in process.stdout:
        tail = [*tail[-9:], line.rstrip()]
        if line.startswith(("Collecting ", "Installing ", "Successfully ", "Downloading ")):
            send({"say": line.strip()[:150]})
    if process.wait():
        said = "\n".join(tail)
        raise RuntimeError(f"`{' '.join(argv[:4])} ...` ended with exit code {process.returncode}:\n{said}")


def main() -> int:
    """Serve one request."""
    os.umask(0o077)
    request = json.loads(read_line())
    os.write(1, MAGIC)
    try:
        send({"answer": {"folder": str(prepare(request["name"], request["lock"], request["python"]))}})
    except BrokenPipeError:
        os._exit(0)
    except Exception as error:
        send({"error": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
