"""Software of the emulated hosts and what they can download: tpu-ubuntu2204-base has Python 3.10 with pip but no venv.

Where this machine has no Python 3.10, its own says that it is one: pip refuses what the real one would refuse, and
modules that are newer are missing, as are those that Ubuntu omits. The Python that hosts download is linked statically,
like the real one: only the system's is, on Debian.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OMITTED = """\
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("tomllib", "wsgiref.types", "venv", "ensurepip"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
AS_3_10 = """\
class Version(tuple):
    major, minor, micro, releaselevel, serial = (property(lambda self, i=i: self[i]) for i in range(5))
sys.version_info = Version((3, 10, 12, "final", 0))
sys.version = "3.10.12" + sys.version[sys.version.index(" "):]
sys.hexversion = 0x030A0CF0
"""


def version_of(python: Path | str) -> str:
    """Return the version of an interpreter, "" if it does not work."""
    with contextlib.suppress(OSError):
        program = "import platform; print(platform.python_version())"
        return subprocess.run([python, "-c", program], capture_output=True, text=True).stdout.strip()
    return ""


def python_3_10() -> Path:
    """Return a Python 3.10 of this machine, or the one that runs this."""
    folders = Path.home().glob(".pyenv/versions/3.10.*/bin"), Path.home().glob(".local/share/uv/python/*/bin")
    places = [Path(place) for place in os.get_exec_path()] + [place for found in folders for place in found]
    found = (place / "python3.10" for place in places)
    return next((one for one in found if one.exists() and version_of(one)), Path(sys.executable)).resolve()


def make_image(folder: Path) -> Path:
    """Make the image's folder of programs, the first on the hosts' PATH, and return it."""
    image = folder / "image"
    if not image.exists():
        python = python_3_10()
        version = version_of(python).rpartition(".")[0]
        place = image / "lib" / f"python{version}" / "site-packages"
        for made in (place, image / "bin"):
            made.mkdir(parents=True)
        (image / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
        (place / "ubuntu.py").write_text(OMITTED + ("" if version == "3.10" else AS_3_10))
        (place / "ubuntu.pth").write_text("import ubuntu\n")  # Debian's own sitecustomize hides any other
        import pip

        (place / "pip").symlink_to(Path(pip.__file__).parent)
        (image / "bin" / "python3").symlink_to(python)
    return image / "bin"


def make_internet(folder: Path) -> dict[str, str]:
    """Make a package index and a store of interpreters, and return the variables by which hosts find them.

    The index has uv (the installed version); the interpreter is this machine's.
    """
    internet = folder / "internet"
    if not internet.exists():
        internet.mkdir(parents=True)
        _wheel_of_uv(internet)
        _archive_of_python(internet)
    return {
        "PIP_FIND_LINKS": str(internet),
        "UV_FIND_LINKS": str(internet),
        "UV_PYTHON_DOWNLOADS_JSON_URL": str(internet / "interpreters.json"),
    }


def _wheel_of_uv(folder: Path) -> None:
    from uv import find_uv_bin

    version = importlib.metadata.version("uv")
    info = f"uv-{version}.dist-info"
    wheel = folder / f"uv-{version}-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        program = zipfile.ZipInfo(f"uv-{version}.data/scripts/uv")
        program.external_attr = 0o100755 << 16
        archive.writestr(program, Path(find_uv_bin()).read_bytes())
        metadata = f"Metadata-Version: 2.1\nName: uv\nVersion: {version}\nRequires-Python: >=3.8\n"
        archive.writestr(f"{info}/METADATA", metadata)
        tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-manylinux_2_17_x86_64\n"
        archive.writestr(f"{info}/WHEEL", tag + "Tag: py3-none-manylinux2014_x86_64\n")
        archive.writestr(f"{info}/RECORD", "")


def _archive_of_python(folder: Path) -> None:
    major, minor = sys.version_info[:2]
    program = Path(f"/usr/bin/python{major}.{minor}")  # linked statically on Debian
    if not program.exists():
        program = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    patch = version_of(program).rpartition(".")[2]
    name = f"cpython-{major}.{minor}.{patch}-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"
    library = program.parents[1] / "lib" / f"python{major}.{minor}"
    left_out = ("__pycache__", "site-packages", "test", "idlelib", "tkinter", "sitecustomize.py")

    def kept(item: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = Path(item.name).parts
        left = any(part in left_out or part.startswith("config-") for part in parts)
        return None if left else item

    with tarfile.open(folder / name, "w:gz", compresslevel=1) as archive:
        for alias in ("python3", f"python{major}.{minor}"):
            archive.add(program, f"python/bin/{alias}")
        archive.add(library, f"python/lib/{library.name}", filter=kept)
        for shared in Path(sys.base_prefix, "lib").glob(f"libpython{major}.{minor}*.so*"):
            archive.add(shared.resolve(), f"python/lib/{shared.name}")
    entry = {
        **{"name": "cpython", "arch": {"family": "x86_64", "variant": None}, "os": "linux", "libc": "gnu"},
        **{"major": major, "minor": minor, "patch": int(patch), "prerelease": ""},
        **{"variant": None, "build": "20251007"},
        "url": (folder / name).as_uri(),
        "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest(),
    }
    key = f"cpython-{major}.{minor}.{patch}-linux-x86_64-gnu"
    (folder / "interpreters.json").write_text(json.dumps({key: entry}))
