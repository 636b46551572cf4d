"""Curricula: the values at each step. A stage that ends at fraction f covers the steps s with s - 1 < f * steps."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from trm.study.schema import DataConfig, ModelConfig, TrainingConfig


class Stage(NamedTuple):
    """Steps up to `last_step` (counted from 1) use `h_cycles` rounds of `l_cycles` latent updates."""

    last_step: int
    h_cycles: int
    l_cycles: int


class DrawStage(NamedTuple):
    """How the steps up to `last_step` (counted from 1) draw their rows."""

    last_step: int
    hints: tuple[int, int]
    """Fewest and most extra clues of a row."""
    shares: tuple[float, ...] = ()
    """Shares of the sources, with sum 1. Empty: all puzzles are drawn equally often."""


def last_step(until: float, steps: int) -> int:
    """The last step of a stage that ends at the fraction `until` of `steps`."""
    return min(steps, ceil(until * steps))


def recursion_stages(model: ModelConfig, training: TrainingConfig) -> list[Stage]:
    """The recursion's (T, n) over the run: the curriculum's stages, then the model's own until the end."""
    stages: list[Stage] = []
    for stage in training.curriculum:
        last = last_step(stage.until, training.steps)
        if last > (stages[-1].last_step if stages else 0):
            stages.append(Stage(last, stage.h_cycles, stage.l_cycles))
    if not stages or stages[-1].last_step < training.steps:
        stages.append(Stage(training.steps, model.h_cycles, model.l_cycles))
    return stages


def draw_stages(data: DataConfig, steps: int) -> list[DrawStage]:
    """How rows are drawn over the run: the data curriculum's stages, then the data's own values until the end."""
    own = (0, 0) if data.hints == "auto" else data.hints
    own_shares = tuple(source.share for source in data.sources)

    def drawn(last: int, hints: tuple[int, int] | None, shares: tuple[float, ...] | None) -> DrawStage:
        shares = shares or own_shares
        return DrawStage(last, hints or own, tuple(share / sum(shares) for share in shares))

    stages: list[DrawStage] = []
    for stage in data.curriculum:
        last = last_step(stage.until, steps)
        if last > (stages[-1].last_step if stages else 0):
            stages.append(drawn(last, stage.hints, stage.shares))
    if not stages or stages[-1].last_step < steps:
        stages.append(drawn(steps, None, None))
    return stages
