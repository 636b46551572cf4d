"""What a number of steps, which often follows from FLOPs, makes of the settings that count in steps."""

from collections.abc import Collection
from itertools import pairwise

from trm.study.schema import RunConfig, TrainingConfig
from trm.study.stages import last_step
from trm.study.text import count

LARGE_SHARE = 0.01
"""Share of the initial weights from which people are told that the average reaches back to the start."""


def initial_share(training: TrainingConfig) -> float:
    """Weight of the initial weights in an EMA that starts at them, after the last step; 0 without an EMA.

    The EMA is bias-corrected (`trm.training.state.bias_corrected`), so that no result holds this share.
    """
    return training.ema**training.steps


def too_short(config: RunConfig) -> str:
    """Which setting the run is too short for, and what to change; empty if none."""
    training = config.training
    steps = f"training.steps={training.steps:,}"
    if training.warmup_steps >= training.steps:
        return (
            f"training.warmup_steps={training.warmup_steps:,} is not below {steps}, so the learning rate never reaches "
            "training.lr: lower the warm-up or train for longer"
        )
    if training.snapshots > training.steps // 2:
        return f"training.snapshots={training.snapshots:,} is more than half of {steps}: lower it, or some are equal"
    for section, stages in (("training", training.curriculum), ("data", config.data.curriculum)):
        ends = [0, *(last_step(stage.until, training.steps) for stage in stages)]
        for number, (before, end) in enumerate(pairwise(ends), 1):
            if end <= before:
                which = f"stage {number} of {section}.curriculum"
                return f"{which} has no step of {steps}: drop the stage or train for longer"
    return ""


def average_remark(runs: Collection[TrainingConfig]) -> str:
    """That the average of weights reaches back to the start of some runs; empty if of none."""
    shares = [share for training in runs if (share := initial_share(training)) > LARGE_SHARE]
    if not shares:
        return ""
    which = "this run" if len(runs) == 1 else f"{count(len(shares), 'run')} of {len(runs)}"
    return (
        f"Weight average: in {which} training.ema reaches back to the start (a plain average would hold up to "
        f"{100 * max(shares):.0f} % initial weights; it is bias-corrected)"
    )
