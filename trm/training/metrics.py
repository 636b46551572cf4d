"""Training metrics: summed on the device over steps, fetched as one vector, converted to named means."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SUMS = (
    "halted",  # finished rows with a valid cell
    "accuracy",  # over those rows; the next three too
    "exact",
    "halt_right",
    "halt_steps",
    "lm_loss",  # over all rows, divided by the global batch; the next two too
    "halt_loss",
    "cost_loss",
    "hints",  # extra clues, divided by the global batch
    "steps",  # optimiser steps since the last fetch
    "grad_norm",
    "grad_norm_big",  # squared norm of the global gradient
    "grad_norm_small",  # mean squared norm of a micro-batch's gradient, scaled to the global batch
    "skipped",  # float16 steps skipped after an overflow
    "bad_step",  # first step whose loss or gradient norm is not finite
    "bad_loss",  # 1 if it was the loss
)
INDEX = {name: i for i, name in enumerate(SUMS)}


@dataclass
class Clocks:
    """Seconds spent by this process so far."""

    step: float = 0.0
    """In training steps, including `feed` and `transfer`."""
    feed: float = 0.0
    """Building batches on the host."""
    transfer: float = 0.0
    """Copying batches to the device, as far as the host waits for it."""


class Meter:
    """Sums since the last reset: SUMS, then a histogram of finished rows by number of steps 1..halt_max_steps."""

    def __init__(self, halt_max_steps: int, device: torch.device):
        self.halt_max_steps = halt_max_steps
        self.size = len(SUMS) + halt_max_steps
        self.sums = torch.zeros(self.size, device=device)

    def batch(self, sums: dict[str, Tensor], histogram: Tensor) -> Tensor:
        """One micro-batch's contribution [size]; missing names count as 0."""
        zero = histogram.new_zeros(())
        named = torch.stack([sums.get(name, zero).to(zero.dtype) for name in SUMS])
        return torch.cat((named, histogram))

    def add(
        self, step_metrics: Tensor, step: Tensor, loss_bad: Tensor, norm_bad: Tensor, extra: dict[str, Tensor]
    ) -> None:
        """Add one step's reduced metrics and `extra`, which is known only after the reduction, in place."""
        seen = self.sums[INDEX["bad_step"]]
        first = (seen == 0) & (loss_bad | norm_bad)
        extra = {
            **extra,
            "steps": torch.ones_like(step),
            "bad_step": torch.where(first, step, 0.0),
            "bad_loss": (first & loss_bad).to(step.dtype),
        }
        self.sums.add_(step_metrics)
        self.sums.add_(self.batch(extra, torch.zeros_like(step_metrics[len(SUMS) :])))


def named_means(sums: list[float], parts: int, batch: int) -> dict[str, float | None]:
    """History columns from fetched sums; None: not measured.

    `parts`: number of micro-batches over all workers. Their gradient norms give the gradient noise scale (arXiv
    1812.06162, appendix A.1), the batch size at which the noise equals the signal.
    """
    value = dict(zip(SUMS, sums))
    halted, steps = value["halted"], max(1.0, value["steps"])

    def over_halted(name: str) -> float | None:
        return value[name] / halted if halted else None

    means = {
        "train/loss": (value["lm_loss"] + value["halt_loss"] + value["cost_loss"]) / steps,
        "train/lm_loss": value["lm_loss"] / steps,
        "train/halt_loss": value["halt_loss"] / steps,
        "train/accuracy": over_halted("accuracy"),
        "train/exact_accuracy": over_halted("exact"),
        "train/halt_accuracy": over_halted("halt_right"),
        "train/steps": over_halted("halt_steps"),
        "train/finished": halted / steps,
        "train/hints": value["hints"] / steps,
        "train/grad_norm": value["grad_norm"] / steps,
        "train/noise_scale": None,
    }
    if parts > 1:
        big, small = value["grad_norm_big"], value["grad_norm_small"]
        rows = batch / parts
        signal = (batch * big - rows * small) / (batch - rows)
        noise = (small - big) / (1 / rows - 1 / batch)
        if signal > 0 and math.isfinite(noise):
            means["train/noise_scale"] = noise / signal
    total = sum(sums[len(SUMS) :])
    for step, count in enumerate(sums[len(SUMS) :], 1):
        means[f"train/halt_share/{step}"] = count / total if total else None
    return means
