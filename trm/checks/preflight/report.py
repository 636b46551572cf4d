"""Runs the checks in order and prints the table."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trm.backends.base import Backend
from trm.errors import UserError

GREEN, RED, NONE = "\033[32m", "\033[31m", "\033[0m"


@dataclass
class Site:
    """The machine to check, its requirements, and what checks share."""

    profile: str
    """local, gpu or tpu."""
    scratch: Path
    """Folder that checkpoints will be written to."""
    backend: Backend | None = None
    """Opened by the devices check."""
    bucket: str | None = None
    """gs:// address for results; None: results stay on disk."""
    devices: int | None = None
    """Required number of devices; None: any."""
    memory_gib: float = 4.0
    """Required host memory."""
    disk_gib: float = 5.0
    """Required free disk space in `scratch`."""
    steps: int = 100
    """Steps of the trial training."""
    learning_rate: float = 2e-3
    """Learning rate of the trial training."""
    clock: Callable[[], float] = time.time
    """Seconds since 1970."""
    shared: dict[str, Any] = field(default_factory=dict)
    """Results of earlier checks for later ones."""

    @property
    def opened(self) -> Backend:
        """The backend. Raises UserError if the devices check found none."""
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
    """Run all checks; an error turns a check's row red.

    On several processes, a row is red if it is red on any of them.
    """
    rows = []
    for name, check in checks.items():
        try:
            row = Row(name, True, check(site))
        except UserError as error:
            row = Row(name, False, str(error))
        except Exception as error:
            row = Row(name, False, f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}")
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
    """The rows as text, with `green` or `RED` in the first column."""
    width = max(len(row.name) for row in rows)
    lines = []
    for row in rows:
        mark = "green" if row.green else "RED  "
        if colour:
            mark = f"{GREEN if row.green else RED}{mark}{NONE}"
        lines.append(f"{mark}  {row.name:<{width}}  {row.text}")
    return "\n".join(lines)
