"""What has been spent so far, from the records of launches and of jobs on slices."""

from __future__ import annotations

import csv
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from trm.study.cost import Hardware, device_text, seconds_text
from trm.study.text import count

LAUNCHES = Path("results/launches")
JOBS = Path(".snakemake/tpu/jobs.csv")
"""The executor plugin's records: a row for each job, with the chip-seconds of all its launches."""


def spent(hardware: Hardware) -> dict[str, Any]:
    """Launches and jobs so far, and what their devices cost at the price of `hardware`.

    On a pod, device time is what each job held, lost launches included; elsewhere the time of finished runs.
    """
    launches = [document for path in sorted(LAUNCHES.glob("*.json")) if (document := _read(path))]
    with suppress(OSError), open(JOBS, newline="", encoding="utf-8") as file:
        used = [float(row["chip_seconds"]) for row in csv.DictReader(file) if row.get("chip_seconds")]
        return _document(launches, hardware, used)
    seconds = [run["seconds"] or 0.0 for launch in launches for run in launch["runs"]]
    return _document(launches, hardware, [value * hardware.devices for value in seconds])


def _document(launches: list[dict[str, Any]], hardware: Hardware, used: list[float]) -> dict[str, Any]:
    hours = sum(used) / 3600
    return {
        "launches": len(launches),
        "jobs": len(used),
        "wall_seconds": sum(launch["seconds"] for launch in launches),
        "device_hours": hours,
        "usd": hours * hardware.usd_per_device_hour,
    }


def _read(path: Path) -> dict[str, Any] | None:
    """A launch's record; None if it is damaged."""
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return document if {"seconds", "runs"} <= document.keys() else None
    except (OSError, ValueError, AttributeError):
        return None


def sentence(document: dict[str, Any], device: str) -> str:
    """The same in words."""
    price = f", ${document['usd']:,.2f}" if document["usd"] else ""
    return (
        f"Spent so far: {device_text(document['device_hours'])} of {device} time{price} by "
        f"{count(document['jobs'], 'job')}; {count(document['launches'], 'launch', 'launches')} took "
        f"{seconds_text(document['wall_seconds'])}"
    )
