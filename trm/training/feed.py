"""From a data set on disk to a step's batch: a pure function of (seed, step), cut to this worker's rows."""

from __future__ import annotations

import time

import numpy as np
import torch

from trm.data.augment import Augmenter
from trm.data.sampler import Sampler
from trm.devices.base import Backend
from trm.network.parameters import uniform
from trm.study.schema import RunConfig
from trm.tasks.arc.augment import ArcAugmenter
from trm.training.optim.schedule import exploration_at
from trm.training.step import Batch, RowBatch


def exploration_minimum(
    seed: int, step: int, batch: int, probability: float, halt_max_steps: int
) -> np.ndarray:
    """Least number of steps of each row of the global batch before it may halt, int32 [batch]; 0: no minimum.

    With the given probability uniform over 2..halt_max_steps (the paper's exploration, drawn anew each step).
    """
    if halt_max_steps < 2:
        return np.zeros(batch, dtype=np.int32)
    explored, drawn = uniform(seed, "exploration", (2, batch), step)
    minimum = 2 + (drawn * (halt_max_steps - 1)).astype(np.int32)
    return np.where(explored < probability, minimum, 0).astype(np.int32)


class Feed:
    """Batches for this worker."""

    def __init__(
        self, config: RunConfig, sampler: Sampler, augmenter: Augmenter | ArcAugmenter, backend: Backend
    ):
        self._config, self._backend = config, backend
        self._sampler, self._augmenter = sampler, augmenter
        self._count = config.training.batch_size // backend.world
        self._first = backend.worker * self._count
        self.host_seconds = 0.0
        """Time spent so far in making batches on the host."""
        self.transfer_seconds = 0.0
        """Time for which the host was held so far by moving batches to the device."""

    def batch(self, step: int) -> Batch | RowBatch:
        """This worker's rows of the global batch of `step` (from 1), on the device."""
        training, config = self._config.training, self._config
        begun = time.perf_counter()
        drawn = self._sampler.batch(step - 1, self._backend.worker, self._backend.world)
        probability = exploration_at(step, training.steps, training.exploration, training.exploration_final)
        minimum = exploration_minimum(
            config.seed, step, training.batch_size, probability, config.model.halt_max_steps
        )[self._first : self._first + self._count]
        kind: type[Batch] | type[RowBatch]
        if isinstance(self._augmenter, ArcAugmenter):
            kind, arrays = RowBatch, self._augmenter.rows(drawn)
        else:
            kind, arrays = (
                Batch,
                (drawn.rows.astype(np.int32), *self._augmenter.maps(drawn.puzzles, drawn.copies)),
            )
        made = time.perf_counter()
        batch = kind(*(self._backend.place_rows(torch.from_numpy(array), 0) for array in (*arrays, minimum)))
        self.host_seconds += made - begun
        self.transfer_seconds += time.perf_counter() - made
        return batch
