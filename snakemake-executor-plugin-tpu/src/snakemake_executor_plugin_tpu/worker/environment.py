"""Builds the jobs' Python environment on a host, once for each lock file, or takes it from Cloud Storage.

The hosts' Python is 3.10 and lacks venv. pip installs `uv`, which downloads the requested interpreter. The first host
stores what it has built in a folder in Cloud Storage, if there is one: the hosts of later slices only unpack it.

The environment's name is the hash of its inputs: a changed lock file makes a new one, and an unchanged one is never
built twice. The request is {"name", "lock", "python", "store", "keep", "api"}; frames report the progress.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

from .agent import send, serve
from .bucket import Bucket
from .tasks import TASK_NAME, root

UV = "0.13.9"
SHOWN = ("Downloading ", "Installed ", "Prepared ", "Using ", "Building ")
TAIL_LINES = 12
Say = Callable[[str], None]


def prepare(
    name: str, lock: str, python: str, store: str | None = None, keep: bool = False, api: str | None = None
) -> Path:
    """Take the environment from `store`, a gs:// folder, or build it, unless it is complete; return its folder.

    `keep`: put what was built into the store.
    """
    if not TASK_NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name an environment")

    def say(sentence: str) -> None:
        send({"say": sentence})

    folder = root() / "environments" / name
    folder.parent.mkdir(exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if (folder / "complete").exists():
            os.utime(folder)
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        archive = root() / f"{name}.tar"
        bucket = Bucket(store, api) if store else None
        try:
            if bucket and bucket.download(archive.name, archive, say):
                unpack(archive, folder)
            else:
                build(folder, lock, python, say)
                if bucket and keep and "/" not in python:
                    say(f"Storing {archive.name} in {store}")
                    pack(folder, archive)
                    with open(archive, "rb") as file:
                        bucket.put(archive.name, file, archive.stat().st_size)
        finally:
            archive.unlink(missing_ok=True)
        (folder / "complete").touch()
    return folder


def build(folder: Path, lock: str, python: str, say: Say) -> None:
    """Build the environment by uv."""
    uv = install_uv(say)
    # For a version uv downloads an interpreter; a path names one on the host.
    managed = [] if "/" in python else ["--managed-python"]
    venv = [str(uv), "venv", "--no-cache", "--quiet", "--relocatable", *managed]
    _run([*venv, "--python", python, str(folder)], say)
    if managed:
        _link(folder, interpreter_of(folder))
    requirements = folder / "requirements.lock"
    requirements.write_text(lock)
    install = [str(uv), "pip", "install", "--no-cache", "--no-progress"]
    where = ["--python", str(folder / "bin" / "python"), "--requirements", str(requirements)]
    _run([*install, *where], say)


def interpreter_of(folder: Path) -> Path:
    return (folder / "bin" / "python").resolve().parents[1]


def _link(folder: Path, interpreter: Path) -> None:
    """Let the environment find its interpreter by a relative path and, in pyvenv.cfg, by the path here."""
    link, program = folder / "bin" / "python", (folder / "bin" / "python").resolve().name
    link.unlink()
    link.symlink_to(Path("..", "..", "..", "pythons", interpreter.name, "bin", program))
    config = folder / "pyvenv.cfg"
    config.write_text(re.sub(r"(?m)^home = .*$", f"home = {interpreter / 'bin'}", config.read_text()))


def pack(folder: Path, archive: Path) -> None:
    """Pack an environment and its interpreter. Not compressed: the network is faster than gzip."""
    with tarfile.open(archive, "w") as tar:
        tar.add(interpreter_of(folder), f"pythons/{interpreter_of(folder).name}")
        tar.add(folder, "environment")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an environment and, unless it is there, its interpreter."""
    new = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extraction_filter = tarfile.tar_filter
            tar.extractall(new)
        (interpreter,) = (new / "pythons").iterdir()
        place = root() / "pythons" / interpreter.name
        place.parent.mkdir(exist_ok=True)
        if not place.exists():
            os.rename(interpreter, place)
        os.rename(new / "environment", folder)
        _link(folder, place)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def install_uv(say: Say) -> Path:
    """Install uv into its own folder by the host's pip, and return its path."""
    folder = root() / f"uv-{UV}"
    if not (folder / "bin" / "uv").exists():
        new = folder.with_name(f".{folder.name}.{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        try:
            _run([*pip, "--no-deps", "--only-binary=:all:", "--target", str(new), f"uv=={UV}"], say)
        except RuntimeError as error:
            raise RuntimeError(
                "uv could not be installed: hosts without a package index need an environment in tpu-environments, "
                f"which a slice that has an index leaves there ({error})"
            ) from None
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(new, folder)
    return folder / "bin" / "uv"


def _run(argv: list[str], say: Say) -> None:
    # torch's builds for CUDA bring gigabytes that a TPU host never uses.
    settings = {"UV_PYTHON_INSTALL_DIR": str(root() / "pythons"), "NO_COLOR": "1", "UV_TORCH_BACKEND": "cpu"}
    environment, nothing, pipe = {**os.environ, **settings}, subprocess.DEVNULL, subprocess.PIPE
    process = subprocess.Popen(
        argv, stdin=nothing, stdout=pipe, stderr=subprocess.STDOUT, errors="replace", env=environment
    )
    assert process.stdout
    tail: list[str] = []
    with process.stdout as output:
        for line in output:
            tail = [*tail[1 - TAIL_LINES :], line.rstrip()]
            if line.startswith(SHOWN):
                say(line.strip()[:150])
    if process.wait():
        text = "\n".join(tail)
        raise RuntimeError(f"`{' '.join(argv[:4])} ...` ended with exit code {process.returncode}:\n{text}")


if __name__ == "__main__":
    sys.exit(serve(lambda request: {"folder": str(prepare(**request))}))
