"""Metric writers: history.csv, console lines, TensorBoard, Weights & Biases."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trm.errors import UserError
from trm.study.text import flops_text

COLUMNS = (
    "step", "rows", "seconds", "train/loss", "train/lm_loss", "train/halt_loss", "train/accuracy",
    "train/exact_accuracy", "train/halt_accuracy", "train/steps", "train/grad_norm", "train/lr",
    "train/weight_norm", "eval/exact_accuracy", "eval/accuracy", "eval/blank_accuracy", "eval/cross_entropy",
    "perf/rows_per_second", "perf/flops_per_second",
)  # fmt: skip

Row = Mapping[str, Any]
"""Metrics by column; None: not measured."""


def to_csv(rows: Sequence[Row]) -> bytes:
    """The rows as CSV: COLUMNS first, then the others in order of appearance; empty cells were not measured."""
    names = dict.fromkeys(COLUMNS)
    for row in rows:
        names.update(dict.fromkeys(row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        values = (row.get(name) for name in names)
        writer.writerow("" if value is None else repr(value) for value in values)
    return text.getvalue().encode()


def duration(seconds: float) -> str:
    """h:mm:ss."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def progress_line(rows: Sequence[Row], steps: int, seconds_left: float) -> str:
    """One line for the console: the last of `rows`, with the exact accuracy of the latest validation."""
    row = rows[-1]
    known = (value for past in reversed(rows) if (value := past.get("eval/exact_accuracy")) is not None)
    validated = next(known, None)
    step = int(row["step"])
    line = f"{100 * step // steps:3d} %  step {step}/{steps}  loss {row['train/loss']:.4f}"
    line += "  validation " + ("   -  " if validated is None else f"{100 * validated:5.1f} %")
    line += f"  {row['perf/rows_per_second']:,.0f} rows/s  {flops_text(row['perf/flops_per_second'])}/s"
    return line + f"  {duration(seconds_left)} left"


class TensorBoard:
    """Event files in `folder`, one scalar series per column; hides earlier events after step `done`."""

    def __init__(self, folder: Path, done: int = 0):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "TensorBoard logging requires the tensorboard package: pip install tensorboard"
            ) from None
        self._writer = SummaryWriter(str(folder), purge_step=done + 1 if done else None)

    def write(self, row: Row) -> None:
        for name, value in row.items():
            if value is not None and name != "step":
                self._writer.add_scalar(name, value, int(row["step"]))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A W&B run whose id is the run's fingerprint."""

    def __init__(self, mode: str, folder: Path, name: str, fingerprint: str, config: dict[str, Any]):
        try:
            import wandb
        except ImportError:
            raise UserError(
                "W&B logging requires the wandb package: pip install wandb, or set wandb to off"
            ) from None
        self._run = wandb.init(
            mode=mode, dir=str(folder), id=fingerprint, name=name, config=config, resume="allow"
        )

    def write(self, row: Row) -> None:
        self._run.log({k: v for k, v in row.items() if v is not None}, step=int(row["step"]))

    def flush(self) -> None:
        """W&B flushes by itself."""

    def close(self) -> None:
        self._run.finish()
