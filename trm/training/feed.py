"""Batches as a pure function of (seed, step), restricted to this worker's rows."""

from __future__ import annotations

import time

import numpy as np
import torch

from trm.backends.base import Backend
from trm.data import hints
from trm.model.parameters import uniform
from trm.study.schema import RunConfig
from trm.study.stages import draw_stages
from trm.tasks.base import HostAugmenter
from trm.training.dataset import Dataset
from trm.training.metrics import Clocks
from trm.training.optim.schedule import exploration_at
from trm.training.step import AnyBatch, Batch, HintBatch, RowBatch


def exploration_minimum(
    seed: int, step: int, batch: int, probability: float, halt_max_steps: int
) -> np.ndarray:
    """Minimum number of steps of each row of the global batch before it may halt, int32 [batch]; 0: none.

    The paper's exploration, drawn anew at each step: uniform over 2..halt_max_steps with the given probability.
    """
    if halt_max_steps < 2:
        return np.zeros(batch, dtype=np.int32)
    explored, drawn = uniform(seed, "exploration", (2, batch), step)
    minimum = 2 + (drawn * (halt_max_steps - 1)).astype(np.int32)
    return np.where(explored < probability, minimum, 0).astype(np.int32)


class Feed:
    """Batches for this worker."""

    def __init__(self, config: RunConfig, dataset: Dataset, backend: Backend, clocks: Clocks | None = None):
        self._config, self._backend = config, backend
        self._sampler, self._augmenter = dataset.sampler(config)
        self._stages = draw_stages(config.data, config.training.steps)
        self._questions = dataset.split("train").inputs if config.data.gives_hints else None
        self._count = config.training.batch_size // backend.world
        self._first = backend.worker * self._count
        self._clocks = clocks or Clocks()

    def batch(self, step: int) -> AnyBatch:
        """This worker's rows of the global batch of `step` (from 1), on the device."""
        training, config = self._config.training, self._config
        started = time.perf_counter()
        drawn = self._sampler.batch(step - 1, self._backend.worker, self._backend.world)
        probability = exploration_at(step, training.steps, training.exploration, training.exploration_final)
        minimum = exploration_minimum(
            config.seed, step, training.batch_size, probability, config.model.halt_max_steps
        )[self._first : self._first + self._count]
        kind: type[AnyBatch]
        arrays: tuple[np.ndarray, ...]
        if isinstance(self._augmenter, HostAugmenter):
            kind, arrays = RowBatch, (*self._augmenter.rows(drawn), minimum)
        else:
            maps = self._augmenter.maps(drawn.puzzles, drawn.copies)
            kind, arrays = Batch, (drawn.rows.astype(np.int32), *maps, minimum)
            if self._questions is not None:
                kind, arrays = HintBatch, (*arrays, *self._hints(step, self._questions[drawn.rows]))
        made = time.perf_counter()
        batch = kind(*(self._backend.place_rows(torch.from_numpy(array), 0) for array in arrays))
        self._clocks.feed += made - started
        self._clocks.transfer += time.perf_counter() - made
        return batch

    def _hints(self, step: int, questions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`order` and `hints` of this worker's rows: see `HintBatch`."""
        config = self._config
        keys = hints.keys_of_step(config.seed, step - 1, config.training.batch_size, self._first, self._count)
        order = hints.order(keys, questions == hints.BLANK)
        if config.data.hints == "auto":
            return order, hints.shares(keys)
        stage = next(stage for stage in self._stages if step <= stage.last_step)
        return order, hints.counts(keys, *stage.hints).astype(np.float32)
