"""The TPU time that jobs have used, from .snakemake/tpu/jobs.csv, and what slices cost."""

import csv
from pathlib import Path

from .allocation import slice_of
from .settings import ExecutorSettings

JOBS = Path(".snakemake/tpu/jobs.csv")
COLUMNS = (
    *("job", "label", "launches", "ok", "submitted", "started", "ended", "reported"),
    *("accelerator_type", "chip_seconds"),
)


def cost(settings: ExecutorSettings, accelerator_type: str) -> str:
    """Describe what a slice costs."""
    kind = accelerator_type or settings.accelerator_type
    chips, price = slice_of(kind).chips, settings.price(kind)
    if price is None:
        return f"costs money ({chips} chips; with tpu-prices this says how much)"
    return f"costs {chips * price:,.2f} USD an hour"


def chips_of(accelerator_type: str | None, hosts: int) -> int:
    """Return the chips of so many hosts of a slice; 0 if the type is unknown."""
    return hosts * slice_of(accelerator_type).chips_per_host if accelerator_type else 0


def used(settings: ExecutorSettings, path: Path = JOBS) -> str:
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
    parts = " and ".join(f"{value:.1f} {family} chip-hours" for family, value in hours.items())
    prices = [settings.price(f"{family}-") for family in hours]
    usd = ""
    if None not in prices:
        total = sum((price or 0.0) * value for price, value in zip(prices, hours.values(), strict=True))
        usd = f": {total:,.2f} USD"
    jobs = f"{len(rows)} job{'s' if len(rows) > 1 else ''}"
    return f"{jobs} of this folder used {parts}{usd}; idle time not counted"
