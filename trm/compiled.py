"""numba's `njit` with a cache on disk. Import it only where compiled code is needed: that takes half a second."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import UserProvidedCacheLocator

from trm.io import build_folders, first_writable


class Locator(UserProvidedCacheLocator):
    """Every copy of the same sources finds the code: numba's own locator asks for the same path too, which each job of
    a pod has for itself."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        return Path(py_file).parent.name


def sources_digest(*folders: Path) -> str:
    """Digest of all source files in `folders` that contain compiled code.

    numba checks only a function's own file, and would reuse code compiled with an older version of a function from
    another file.
    """
    texts = [path.read_bytes() for folder in folders for path in sorted(folder.rglob("*.py"))]
    compiled = [text for text in texts if b"njit" in text or b"numba" in text]
    return hashlib.sha256(b"\0".join(compiled)).hexdigest()[:12]


def cache_folder(*sources: Path) -> Path | None:
    """A writable folder for the compiled code of `sources`; its name changes with the source files."""
    places = build_folders(sources[0])
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        places.insert(0, Path(chosen))
    name = f"numba-{sources_digest(*sources)}"
    return first_writable([place / name for place in places])


FOLDER = cache_folder(Path(__file__).with_name("tasks"), Path(__file__).with_name("data"))
"""Where compiled code is kept; None: no place is writable."""
if FOLDER is not None:
    config: Any = numba.config
    config.CACHE_DIR = str(FOLDER)
    config.CACHE_LOCATOR_CLASSES = f"{__name__}.{Locator.__name__}"

njit = numba.njit(cache=FOLDER is not None, nogil=True)
"""Compiles at the first call for each set of types; releases the GIL, so that threads run in parallel."""
