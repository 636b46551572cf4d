"""Builds the jobs' Python environment on a host, once for each lock file.

The hosts' Python is 3.10 and lacks venv. pip installs `uv`, which downloads the requested interpreter.

The environment's name is the hash of its inputs: a changed lock file makes a new one, and an unchanged one is never
built twice. The request on stdin is {"name", "lock", "python"}; lines on stdout report the progress.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .files import root

UV = "0.13.9"
SHOWN = ("Downloading ", "Installed ", "Prepared ", "Using ", "Building ")
TAIL_LINES = 12
FACTS = (
    "import json, sys, sysconfig; named = sysconfig.get_config_var; print(json.dumps({"
    "'lib': [sys.base_prefix + '/lib', named('LIBDIR')], 'name': 'libpython%d.%d.so.1.0' % sys.version_info[:2], "
    "'packages': sysconfig.get_path('purelib')}))"
)
"""Program that prints where an interpreter keeps its library and its packages."""
CHECK = (
    "import torch_xla; from torch_xla._internal.tpu import num_available_chips; "
    "print('torch_xla', torch_xla.__version__, 'loads and sees', num_available_chips(), 'TPU chips')"
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def prepare(name: str, lock: str, python: str) -> Path:
    """Build the environment unless it is complete; return its folder."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name an environment")

    folder = root() / "environments" / name
    folder.parent.mkdir(exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if (folder / "complete").exists():
            os.utime(folder)
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        build(folder, lock, python)
        (folder / "complete").touch()
    return folder


def build(folder: Path, lock: str, python: str) -> None:
    """Build the environment by uv."""
    uv = install_uv()
    # For a version uv downloads an interpreter; a path names one on the host.
    managed = [] if "/" in python else ["--managed-python"]
    venv = [str(uv), "venv", "--no-cache", "--quiet", *managed]
    _run([*venv, "--python", python, str(folder)])
    requirements = folder / "requirements.lock"
    requirements.write_text(lock)
    install = [str(uv), "pip", "install", "--no-cache", "--no-progress"]
    where = ["--python", str(folder / "bin" / "python"), "--requirements", str(requirements)]
    _run([*install, *where])
    finish_torch_xla(folder / "bin" / "python")


def finish_torch_xla(python: Path) -> None:
    """Make torch_xla loadable, import it and count the host's chips, without opening them. RuntimeError: it does not
    load. Does nothing in an environment without torch_xla.

    Its extension needs the shared libpython. uv's interpreters contain libpython and find the shared one by their
    RPATH, which the loader ignores for a library with a RUNPATH, such as this extension: `$ORIGIN/torch_xla/lib`.
    """
    facts = json.loads(_run([str(python), "-c", FACTS])[-1])
    package = Path(facts["packages"], "torch_xla")
    if not package.exists():
        return
    kept = (Path(folder, facts["name"]) for folder in facts["lib"] if folder)
    if library := next((path for path in kept if path.exists()), None):
        (package / "lib").mkdir(exist_ok=True)
        (package / "lib" / facts["name"]).symlink_to(library)
    print(_run([str(python), "-c", CHECK])[-1])


def install_uv() -> Path:
    """Install uv into its own folder by the host's pip, and return its path."""
    folder = root() / f"uv-{UV}"
    if not (folder / "bin" / "uv").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        with tempfile.TemporaryDirectory(dir=root(), prefix=".uv.") as made:
            new = f"{made}/uv"
            try:
                _run([*pip, "--no-deps", "--only-binary=:all:", "--target", new, f"uv=={UV}"])
            except RuntimeError as error:
                raise RuntimeError(
                    "uv could not be installed: the hosts need a package index, by external addresses or by Cloud NAT "
                    f"({error})"
                ) from None
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(new, folder)
    return folder / "bin" / "uv"


def _run(argv: list[str]) -> list[str]:
    """Run a command and return the last lines that it printed. RuntimeError: it failed."""
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
                print(line.strip()[:150], flush=True)
    if process.wait():
        text = "\n".join(tail)
        raise RuntimeError(f"`{' '.join(argv[:4])} ...` ended with exit code {process.returncode}:\n{text}")
    return tail


def main() -> int:
    """Build the requested environment; the reason of a failure is in the last lines of the output."""
    try:
        prepare(**json.loads(sys.stdin.buffer.read()))
    except (OSError, ValueError, RuntimeError) as error:
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
