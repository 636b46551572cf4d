"""numba's `njit`, cached on disk wherever this user can write. Import it only where compiled code is needed: it costs
about half a second."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def _choose_cache() -> None:
    # numba looks beside the source and then in the home folder, and fails when it can write to neither
    if os.environ.get("NUMBA_CACHE_DIR"):
        return
    here = Path(__file__).parent / "__pycache__"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for folder in (here, home / "trm" / "numba", Path(tempfile.gettempdir()) / f"trm-numba-{os.getuid()}"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError:
            continue
        if folder != here:
            os.environ["NUMBA_CACHE_DIR"] = str(folder)
        return


_choose_cache()

import numba  # noqa: E402

njit = numba.njit(cache=True, nogil=True)
"""Compiled on first call for the types it meets; releases the interpreter lock, so threads run side by side."""

inline = numba.njit(cache=True, nogil=True, inline="always")
"""As `njit`, its body placed into the caller's."""
