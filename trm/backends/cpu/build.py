"""Builds the CPU kernel (`source/`) with the machine's C++ compiler, once for each processor and version of the source.

`python -m trm.backends.cpu.build` builds it ahead of the first job. Environment variables: CXX names the compiler;
TRM_CPU_ISA is an instruction set of ISAS to build for (default: all that this processor has).
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from trm.errors import UserError
from trm.io import build_folders, first_writable
from trm.provenance import processor

SOURCE = Path(__file__).with_name("source")
ISA_VARIABLE = "TRM_CPU_ISA"
ISAS = {
    "native": "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native",
    "baseline": "",
    "avx2": "-march=haswell",
    "avx512": "-march=skylake-avx512",
    "avx512_bf16": "-march=cooperlake",
}
FLAGS = (
    "-std=gnu++17", "-O3", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-w",
)  # fmt: skip
INSTALL = "install one (Debian: apt install g++; macOS: xcode-select --install) or name it in CXX"


class BuildError(Exception):
    """The kernel cannot be built; the message says why and what to do."""


def isa() -> str:
    """The instruction set to build for. Raises UserError if TRM_CPU_ISA is unknown."""
    name = os.environ.get(ISA_VARIABLE, "native")
    if name not in ISAS:
        raise UserError(f"{ISA_VARIABLE}={name}: choose one of {', '.join(ISAS)}")
    return name


def compiler() -> list[str] | None:
    """The command of the C++ compiler; None if there is none."""
    if given := os.environ.get("CXX"):
        return shlex.split(given)
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    return [found] if found else None


def _digest(*parts: str | bytes) -> str:
    encoded = [part.encode() if isinstance(part, str) else part for part in parts]
    return hashlib.sha256(b"\0".join(encoded)).hexdigest()[:12]


def _wanted() -> str:
    """Start of the library's file name: what it is built from and for."""
    name, features = processor()
    sources = [path.read_bytes() for path in sorted(SOURCE.iterdir()) if path.suffix in (".h", ".cpp")]
    return f"kernel-{_digest(*sources, *FLAGS, isa(), name, *sorted(features))}"


def folders() -> list[Path]:
    """Where files built for this machine are kept; a new one goes to the first folder that is writable."""
    return build_folders(SOURCE)


@cache
def library() -> Path:
    """The built library, built now if it was not before.

    Raises:
        BuildError: there is no compiler, or it fails.
        UserError: TRM_CPU_ISA is unknown.
    """
    wanted, command = _wanted(), compiler()
    if command is None:
        built = [path for folder in folders() for path in sorted(folder.glob(f"{wanted}-*.so"))]
        if built:
            return built[0]
        raise BuildError(f"no C++ compiler was found: {INSTALL}")
    name = f"{wanted}-{_digest(*command)}.so"
    for folder in folders():
        if (folder / name).exists():
            return folder / name
    target = first_writable(folders())
    if target is None:
        raise BuildError("no folder for the built library is writable: set XDG_CACHE_HOME to one that is")
    return _compile(command, target / name)


def _compile(command: list[str], target: Path) -> Path:
    print("Compiling the CPU kernel (once for this machine, about 10 s)", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder) / "kernel.so"
        flags = [*FLAGS, *filter(None, [ISAS[isa()]])]
        try:
            result = subprocess.run(
                [*command, *flags, "-o", str(built), str(SOURCE / "kernel.cpp")],
                capture_output=True,
                text=True,
            )
        except OSError as error:
            raise BuildError(f"the C++ compiler cannot be started ({error}): {INSTALL}") from None
        if result.returncode:
            first = next((line for line in result.stderr.splitlines() if "error" in line), "no message")
            raise BuildError(f"{shlex.join(command)} failed ({first.strip()}): {INSTALL}")
        built.replace(target)  # other processes may be building the same
    return target


if __name__ == "__main__":
    try:
        library()
    except BuildError as error:
        print(
            f"The CPU kernel was not built: {error}. PyTorch will be used, which is slower.", file=sys.stderr
        )
