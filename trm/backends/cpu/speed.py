"""How fast this machine's CPU trains, as measured at set-up by `trm.checks.speed`: for plans before the first run."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from trm.backends.cpu.build import folders, isa
from trm.io import first_writable, write_json
from trm.provenance import processor


class Speed(NamedTuple):
    """Training steps that one core has taken."""

    mixer: str
    d_model: int
    flops: float
    seconds: float


def _name() -> str:
    # of a processor: machines may share a home folder
    model, features = processor()
    return (
        f"speed-{hashlib.sha256(' '.join([isa(), model, *sorted(features)]).encode()).hexdigest()[:12]}.json"
    )


def read() -> list[Speed]:
    """What was measured here; empty: nothing was."""
    for folder in folders():
        try:
            found: list[dict[str, Any]] = json.loads((folder / _name()).read_text(encoding="utf-8"))
            return [Speed(**item) for item in found]
        except (OSError, ValueError, TypeError):
            continue
    return []


def write(speeds: list[Speed]) -> Path | None:
    """Keep a measurement; None: no folder is writable."""
    folder = first_writable(folders())
    if folder is None:
        return None
    write_json(folder / _name(), [speed._asdict() for speed in speeds])
    return folder / _name()
