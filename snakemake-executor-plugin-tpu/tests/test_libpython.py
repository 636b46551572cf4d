"""torch_xla's extension needs the shared libpython, and uv's interpreters are linked to a static one."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from snakemake_executor_plugin_tpu.worker import environment

LIBRARY = "libpython3.11.so.1.0"
STATIC = Path("/usr/bin/python3.11")
UV = Path(sys.executable).with_name("uv")
STDLIB = Path("/usr/lib/python3.11")
EXTENSION = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_XLAC", 0, -1, 0};
PyMODINIT_FUNC PyInit__XLAC(void) { return PyModule_Create(&module); }
"""
# As a host has it: no libpython in the system's folders.
HIDE = """
set -e
mount --make-rprivate / && mount -t tmpfs tmpfs "$1" && mkdir "$1/upper" "$1/work"
for path in "$2"/libpython3.11.so*; do [ ! -e "$path" ] || mknod "$1/upper/${path##*/}" c 0 0; done
mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$2"
shift 2
exec "$@"
"""
BUILD = """
import sys
from pathlib import Path
from snakemake_executor_plugin_tpu.worker import environment
environment.build(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
"""


def dynamic(path: Path, tag: str) -> list[str]:
    """Values of a tag of a file's dynamic section."""
    done = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True)
    return re.findall(rf"\({tag}\).*\[(.*)\]", done.stdout)


@pytest.fixture
def interpreter(tmp_path) -> Path:
    """An interpreter like uv's: libpython is static in it and shared in ../lib."""
    shared = Path(sysconfig.get_config_var("LIBDIR"), LIBRARY)
    for need in (STATIC, STDLIB / "os.py", shared, UV):
        if not need.exists():
            pytest.skip(f"needs {need}")
    if tools := [name for name in ("readelf", "cc", "unshare") if not shutil.which(name)]:
        pytest.skip(f"needs {tools[0]}")
    if LIBRARY in dynamic(STATIC, "NEEDED"):
        pytest.skip(f"{STATIC} needs the shared libpython")
    python = tmp_path / "managed/bin/python3.11"
    python.parent.mkdir(parents=True)
    shutil.copy(STATIC, python)
    (tmp_path / "managed/lib").mkdir()
    (tmp_path / "managed/lib/python3.11").symlink_to(STDLIB)
    shutil.copy(shared, tmp_path / "managed/lib" / LIBRARY)
    return python


@pytest.fixture
def wheel(tmp_path) -> Path:
    """A package named torch_xla whose extension has the NEEDED and RUNPATH entries of torch_xla 2.9.0's."""
    extension, source = tmp_path / "_XLAC.cpython-311-x86_64-linux-gnu.so", tmp_path / "xlac.c"
    source.write_text(EXTENSION)
    (tmp_path / "libpython3.11.so").symlink_to(Path(sysconfig.get_config_var("LIBDIR"), LIBRARY))
    subprocess.run(
        [
            *("cc", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", source, "-o", extension),
            *("-Wl,--no-as-needed,--enable-new-dtags,-rpath,$ORIGIN/torch_xla/lib", f"-L{tmp_path}"),
            "-lpython3.11",
        ],
        check=True,
    )
    assert LIBRARY in dynamic(extension, "NEEDED")
    assert dynamic(extension, "RUNPATH") == ["$ORIGIN/torch_xla/lib"]
    path = tmp_path / "torch_xla-2.9.0-py3-none-any.whl"
    files = {
        "torch_xla/__init__.py": "import _XLAC\n__version__ = '2.9.0'\n",
        "torch_xla/_internal/tpu.py": "def num_available_chips():\n    return 4\n",
        "torch_xla-2.9.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch_xla\nVersion: 2.9.0\n",
        "torch_xla-2.9.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "torch_xla-2.9.0.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(extension, extension.name)
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_torch_xla_loads_where_only_the_interpreter_has_libpython(interpreter, wheel, tmp_path):
    """The build fails if it does not, and says how many chips torch_xla sees."""
    uv = tmp_path / f"uv-{environment.UV}/bin/uv"
    uv.parent.mkdir(parents=True)
    uv.symlink_to(UV)
    (tmp_path / "overlay").mkdir()
    system = Path("/usr/lib", sysconfig.get_config_var("MULTIARCH"))
    hidden = ["unshare", "-m", "sh", "-c", HIDE, "sh", str(tmp_path / "overlay"), str(system)]
    variables = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    variables["TPU_HOST_ROOT"] = str(tmp_path)

    def run(*words: object) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*hidden, *map(str, words)], env=variables, capture_output=True, text=True, timeout=300
        )

    if (tried := run("true")).returncode:
        pytest.skip(f"no mount namespace here: {tried.stderr.strip()}")
    lock = f"--no-index\n--find-links {wheel.parent}\ntorch_xla==2.9.0\n"
    done = run(sys.executable, "-c", BUILD, tmp_path / "environment", lock, interpreter)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("torch_xla 2.9.0 loads and sees 4 TPU chips\n")
    loaded = run(tmp_path / "environment/bin/python", "-c", "import torch_xla, sys; print(sys.base_prefix)")
    assert loaded.stdout == f"{interpreter.parents[1]}\n"

    (interpreter.parents[1] / "lib" / LIBRARY).unlink()
    done = run(sys.executable, "-c", BUILD, tmp_path / "second", lock, interpreter)
    assert f"ImportError: {LIBRARY}: cannot open shared object file" in done.stderr
