"""The TPU time that jobs have used, from .snakemake/tpu/jobs.csv, and its price."""

import csv
from pathlib import Path

from .allocation import slice_of

JOBS = Path(".snakemake/tpu/jobs.csv")
COLUMNS = (
    *("job", "label", "launches", "ok", "submitted", "started", "ended", "reported"),
    *("accelerator_type", "chip_seconds"),
)
# USD per chip and hour on demand, list prices of 2025; spot capacity costs less.
PRICES = {"v2": 1.125, "v3": 2.0, "v4": 3.22, "v5litepod": 1.2, "v5p": 4.2, "v6e": 2.7}


def price(accelerator_type: str) -> float:
    """Return the on-demand price of a slice in USD per hour."""
    return slice_of(accelerator_type).chips * PRICES[accelerator_type.partition("-")[0]]


def chips_of(accelerator_type: str | None, hosts: int) -> int:
    """Return the chips of so many hosts of a slice; 0 if the type is unknown."""
    return hosts * slice_of(accelerator_type).chips_per_host if accelerator_type else 0


def used(path: Path = JOBS) -> str:
    """Describe what the jobs of a folder have used, including lost launches; empty if there is no record."""
    try:
        with open(path, newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("accelerator_type")]
    except OSError:
        return ""
    hours: dict[str, float] = {}
    for row in rows:
        family = row["accelerator_type"].partition("-")[0]
        hours[family] = hours.get(family, 0.0) + float(row["chip_seconds"]) / 3600
    if not hours:
        return ""
    usd = sum(PRICES[family] * value for family, value in hours.items())
    parts = " and ".join(f"{value:.1f} {family} chip-hours" for family, value in hours.items())
    jobs = f"{len(rows)} job{'s' if len(rows) > 1 else ''}"
    return (
        f"{jobs} of this folder used {parts}: {usd:,.2f} USD on demand, less on spot; idle time not counted"
    )
