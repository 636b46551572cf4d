"""numba's `njit`, cached on disk wherever this user can write. Import it only where compiled code is needed: it costs
about half a second."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numba


def sources_digest(*folders: Path) -> str:
    """Digest of every source file in `folders` that holds compiled code.

    numba itself looks at a function's own file only, and would go on using code compiled with an older version of a
    function from another file.
    """
    texts = [path.read_bytes() for folder in folders for path in sorted(folder.rglob("*.py"))]
    compiled = [text for text in texts if b"njit" in text or b"numba" in text]
    return hashlib.sha256(b"\0".join(compiled)).hexdigest()[:12]


def first_writable(folders: list[Path]) -> Path | None:
    """The first folder that can be made and written to."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return None


def cache_folder(*sources: Path) -> Path | None:
    """A writable folder for the compiled code of `sources`; it changes with the source files."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    places = [sources[0] / "__pycache__", home / "trm", Path(tempfile.gettempdir()) / f"trm-{os.getuid()}"]
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        places.insert(0, Path(chosen))
    name = f"numba-{sources_digest(*sources)}"
    return first_writable([place / name for place in places])


_FOLDER = cache_folder(Path(__file__).with_name("tasks"), Path(__file__).with_name("data"))
if _FOLDER is not None:
    config: Any = numba.config
    config.CACHE_DIR = str(_FOLDER)

njit = numba.njit(cache=_FOLDER is not None, nogil=True)
"""Compiled on first call for the types it meets; releases the interpreter lock, so threads run side by side."""
