"""What slices cost, and the columns of .snakemake/tpu/jobs.csv, the TPU time that jobs have used."""

from .allocation import slice_of
from .settings import ExecutorSettings

COLUMNS = (
    *("job", "label", "launches", "ok", "submitted", "started", "ended", "reported"),
    *("accelerator_type", "chip_seconds"),
)


def cost(settings: ExecutorSettings, accelerator_type: str) -> str:
    kind = accelerator_type or settings.accelerator_type
    chips, price = slice_of(kind).chips, settings.price(kind)
    if price is None:
        return f"costs money ({chips} chips; with tpu-prices this says how much)"
    return f"costs {chips * price:,.2f} USD an hour"
