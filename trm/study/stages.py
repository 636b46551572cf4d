"""Curricula: the values at each step. A stage that ends at fraction f covers the steps s with s - 1 < f * steps."""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import NamedTuple, Self, TypeVar

from trm.study.schema import CurriculumStage, DataConfig, DataStage, ModelConfig, TrainingConfig

AnyStage = TypeVar("AnyStage", CurriculumStage, DataStage)
Span = TypeVar("Span", "Stage", "DrawStage")


class Recursion(NamedTuple):
    """T rounds of n latent updates in each supervision step, and at most Nsup steps of a row."""

    h_cycles: int
    l_cycles: int
    halt_max_steps: int

    @property
    def cycles(self) -> tuple[int, int]:
        """(T, n)."""
        return self[:2]

    @classmethod
    def of(cls, model: ModelConfig, stage: CurriculumStage | None = None) -> Self:
        """What a stage says, and otherwise the model."""
        return cls(*(getattr(stage, name, None) or getattr(model, name) for name in cls._fields))


class Stage(NamedTuple):
    """How the steps up to `last_step` (counted from 1) recur."""

    last_step: int
    recursion: Recursion


class DrawStage(NamedTuple):
    """How the steps up to `last_step` (counted from 1) draw their rows."""

    last_step: int
    hints: tuple[int, int]
    """Fewest and most extra clues of a row."""


def stage_at(stages: Sequence[Span], step: int) -> Span:
    """The stage of a step, counted from 1."""
    return next(stage for stage in stages if step <= stage.last_step)


def last_step(until: float, steps: int) -> int:
    """The last step of a stage that ends at the fraction `until` of `steps`."""
    return min(steps, ceil(until * steps))


def recursion_stages(model: ModelConfig, training: TrainingConfig) -> list[Stage]:
    """The recursion over the run: the curriculum's stages, then the model's own until the end."""
    spans = _spans(training.curriculum, training.steps)
    return [Stage(last, Recursion.of(model, stage)) for last, stage in spans]


def draw_stages(data: DataConfig, steps: int) -> list[DrawStage]:
    """How rows are drawn over the run: the data curriculum's stages, then the data's own values until the end."""
    spans = _spans(data.curriculum, steps)
    return [DrawStage(last, (stage and stage.hints) or data.hints) for last, stage in spans]


def _spans(curriculum: Sequence[AnyStage], steps: int) -> Iterator[tuple[int, AnyStage | None]]:
    """The last step of each stage that is not empty, and the stage; None: after the last one."""
    done = 0
    for stage in curriculum:
        if (last := last_step(stage.until, steps)) > done:
            yield last, stage
            done = last
    if done < steps:
        yield steps, None
