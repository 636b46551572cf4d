"""Runs the checks in order and prints the table."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trm.devices.base import Backend
from trm.errors import UserError

GREEN, RED, NONE = "\033[32m", "\033[31m", "\033[0m"


@dataclass
class Site:
    """What is checked, and what it must have."""

    profile: str
    """local, gpu or tpu."""
    scratch: Path
    """Folder for small files; where checkpoints will be written."""
    backend: Backend | None = None
    """Opened by the devices check."""
    bucket: str | None = None
    """gs:// address that results go to; None: results stay on disk."""
    devices: int | None = None
    """Devices there must be; None: any number (tpu: four a process)."""
    memory_gib: float = 4.0
    """Host memory there must be."""
    disk_gib: float = 5.0
    """Free disk there must be below `scratch`."""
    steps: int = 100
    """Steps of the trial training."""
    learning_rate: float = 2e-3
    """Its learning rate."""
    clock: Callable[[], float] = time.time
    """Seconds since 1970."""
    shared: dict[str, Any] = field(default_factory=dict)
    """What later checks use of earlier ones."""

    @property
    def opened(self) -> Backend:
        """The backend. UserError: the devices check has found none."""
        if self.backend is None:
            raise UserError("not checked: there is no device")
        return self.backend


class Row(NamedTuple):
    """One line of the table."""

    name: str
    green: bool
    text: str


Check = Callable[[Site], str]


def run_checks(site: Site, checks: dict[str, Check]) -> list[Row]:
    """Do every check; a UserError, or any other error, makes its row red and the others are done all the
    same.

    On several processes a row is red if it is red in one of them.
    """
    rows = []
    for name, check in checks.items():
        try:
            row = Row(name, True, check(site))
        except UserError as error:
            row = Row(name, False, str(error))
        except Exception as error:
            row = Row(
                name, False, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )
        rows.append(_agreed(site.backend, row))
    return rows


def _agreed(backend: Backend | None, row: Row) -> Row:
    if backend is None or backend.processes == 1:
        return row
    flags = [bool(flag) for flag in backend.gather(torch.tensor([float(row.green)]))]
    if row.green and not all(flags):
        return Row(row.name, False, f"red in process {flags.index(False)}: see what it printed")
    if not row.green and backend.rank:
        print(f"preflight, process {backend.rank}: {row.name}: {row.text}", file=sys.stderr, flush=True)
    return row


def table(rows: list[Row], colour: bool) -> str:
    """The rows, green or red in the first column (in words where there is no colour)."""
    width = max(len(row.name) for row in rows)
    lines = []
    for row in rows:
        mark = "green" if row.green else "RED  "
        if colour:
            mark = f"{GREEN if row.green else RED}{mark}{NONE}"
        lines.append(f"{mark}  {row.name:<{width}}  {row.text}")
    return "\n".join(lines)
