"""The published data sets: where they lie, at which revision, and what their bytes are.

The Sudoku digests are those that several independent public projects pin, the maze ones those of a single project; a
download with another digest is refused.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OfficialFiles:
    """One published data set on the Hugging Face hub: its own division into train.csv and test.csv."""

    repository: str
    revision: str
    """Commit: what it names never changes."""
    sha256: dict[str, str]
    """File name -> SHA-256, train first."""


OFFICIAL = {
    "sudoku": OfficialFiles(
        "sapientinc/sudoku-extreme",
        "58942f96baeb572ca3127e2a9e9c70f330783d6b",
        {
            "train.csv": "64b46674db0148e0d73a16346dadeb2b1c00824d3fca3f85b2ae7037f6b4b38e",
            "test.csv": "a2fd52aea23d331d5b4ee723c856236e838a9fb9a70e66f4e0e0cf26c338c6a8",
        },
    ),
    "maze": OfficialFiles(
        "sapientinc/maze-30x30-hard-1k",
        "549754de3d67eebe57b6b22c7d226b9412d55b07",
        {
            "train.csv": "25f9e39b5aee16967da41ba63b2d1d75cf608c2360d8a1419d827f9859dbafa0",
            "test.csv": "5120d52088fb3f8036e62e90103808a79ba58847d8601f9451f40991b0903a62",
        },
    ),
}
"""By task."""

FIRST_REVISIONS = {
    "sudoku": "58942f96baeb572ca3127e2a9e9c70f330783d6b",
    "maze": "549754de3d67eebe57b6b22c7d226b9412d55b07",
}
"""What `official` means in identities without checksums. Never changed: another revision puts its checksums there."""
