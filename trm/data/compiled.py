"""numba's `njit`, cached on disk wherever this user can write. Import it only where compiled code is needed: it costs
about half a second."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


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


def _choose_cache() -> None:
    # numba looks beside the source and then in the home folder, and fails when it can write to neither
    here = Path(__file__).parent / "__pycache__"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    chosen = first_writable(
        [here, home / "trm" / "numba", Path(tempfile.gettempdir()) / f"trm-numba-{os.getuid()}"]
    )
    if chosen not in (here, None):
        os.environ.setdefault("NUMBA_CACHE_DIR", str(chosen))


_choose_cache()

import numba  # noqa: E402

njit = numba.njit(cache=True, nogil=True)
"""Compiled on first call for the types it meets; releases the interpreter lock, so threads run side by side."""

inline = numba.njit(cache=True, nogil=True, inline="always")
"""As `njit`, its body placed into the caller's."""
