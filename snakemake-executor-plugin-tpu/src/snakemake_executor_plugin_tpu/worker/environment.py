"""Builds the jobs' Python environment on a host, once for each lock file.

The hosts' Python is 3.10 and lacks venv. pip installs `uv`, which downloads the requested interpreter. Hosts without a
package index get uv, interpreter and packages from a folder in Cloud Storage.

The environment's name is the hash of its inputs: a changed lock file makes a new one, and an unchanged one is never
built twice. The request is {"name", "lock", "python", "wheelhouse", "api"}; frames report the progress.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from .agent import send, serve
from .bucket import Bucket
from .tasks import TASK_NAME, root

UV = "0.13.9"
SHOWN = ("Downloading ", "Installed ", "Prepared ", "Using ", "Building ")
TAIL_LINES = 12


def prepare(name: str, lock: str, python: str, wheelhouse: str | None = None, api: str | None = None) -> Path:
    """Build the environment unless it is complete, and return its folder."""
    if not TASK_NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name an environment")
    folder = root() / "environments" / name
    folder.parent.mkdir(exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if (folder / "complete").exists():
            os.utime(folder)
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        options = []
        if wheelhouse:
            wheels = fetch(wheelhouse, api)
            uv, python = unpack_uv(wheels), str(unpack_python(wheels))
            options = ["--offline", "--no-index", "--find-links", str(wheels)]
        else:
            uv = install_uv()
        # For a version uv downloads an interpreter; a path names one on the host.
        managed = [] if "/" in python else ["--managed-python"]
        _run([str(uv), "venv", "--no-cache", "--quiet", *managed, "--python", python, str(folder)])
        requirements = folder / "requirements.lock"
        requirements.write_text(lock)
        install = [str(uv), "pip", "install", "--no-cache", "--no-progress"]
        where = ["--python", str(folder / "bin" / "python"), "--requirements", str(requirements)]
        _run([*install, *options, *where])
        (folder / "complete").touch()
    return folder


def install_uv() -> Path:
    """Install uv into its own folder by the host's pip, and return its path."""
    folder = root() / f"uv-{UV}"
    if not (folder / "bin" / "uv").exists():
        new = folder.with_name(f".{folder.name}.{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        try:
            _run([*pip, "--no-deps", "--only-binary=:all:", "--target", str(new), f"uv=={UV}"])
        except RuntimeError as error:
            raise RuntimeError(
                f"uv could not be installed: a host without access to a package index needs tpu-wheelhouse ({error})"
            ) from None
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(new, folder)
    return folder / "bin" / "uv"


def fetch(url: str, api: str | None) -> Path:
    """Download what is missing of the wheelhouse to the host and return its folder."""
    folder = root() / "wheelhouse"
    folder.mkdir(exist_ok=True)
    bucket = Bucket(url, api)
    sizes = bucket.list()
    if not any(name.startswith("uv-") for name in sizes):
        raise RuntimeError(
            f"{url} is not a wheelhouse: fill it with `python -m snakemake_executor_plugin_tpu wheelhouse`"
        )
    for name, size in sizes.items():
        path = folder / Path(name).name
        if not path.exists() or path.stat().st_size != size:
            send({"say": f"Downloading {name} ({size >> 20} MB)"})
            bucket.download(name, path)
    for path in folder.iterdir():
        if path.name not in sizes:
            path.unlink()
    return folder


def unpack_uv(wheels: Path) -> Path:
    """Extract uv from its wheel and return its path."""
    (wheel,) = wheels.glob(f"uv-{UV}-*.whl")
    path = root() / f"uv-{UV}" / "bin" / "uv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        path.write_bytes(archive.read(f"uv-{UV}.data/scripts/uv"))
    path.chmod(0o700)
    return path


def unpack_python(wheels: Path) -> Path:
    """Unpack the interpreter and return its path."""
    (archive,) = wheels.glob("cpython-*.tar.gz")
    folder = root() / "pythons" / archive.name[: -len(".tar.gz")]
    if not folder.exists():
        new = folder.with_name(f".{folder.name}.{os.getpid()}")
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extraction_filter = tarfile.data_filter
            tar.extractall(new)
        os.rename(new, folder)
    return folder / "python" / "bin" / "python3"


def _run(argv: list[str]) -> None:
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "UV_PYTHON_INSTALL_DIR": str(root() / "pythons"), "NO_COLOR": "1"},
    )
    assert process.stdout
    tail: list[str] = []
    with process.stdout as output:
        for line in output:
            tail = [*tail[1 - TAIL_LINES :], line.rstrip()]
            if line.startswith(SHOWN):
                send({"say": line.strip()[:150]})
    if process.wait():
        text = "\n".join(tail)
        raise RuntimeError(f"`{' '.join(argv[:4])} ...` ended with exit code {process.returncode}:\n{text}")


if __name__ == "__main__":
    sys.exit(serve(lambda request: {"folder": str(prepare(**request))}))
