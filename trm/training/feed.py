"""Batches as a pure function of (seed, step), restricted to this worker's rows."""

import time
from collections.abc import Sequence

import numpy as np
import torch

from trm.backends.base import Backend
from trm.data import hints
from trm.model.parameters import uniform
from trm.study.schema import RunConfig
from trm.study.stages import draw_stages, recursion_stages, stage_at
from trm.tasks.base import HostAugmenter
from trm.training.dataset import Dataset
from trm.training.metrics import Clocks
from trm.training.optim.schedule import exploration_at
from trm.training.step import AnyBatch, Batch, HintBatch, RowBatch

ROWS_AHEAD = 2048
"""Rows drawn at once: NumPy's calls for one small batch cost more than the work."""


def exploration_minimum(
    seed: int, steps: range, batch: int, probability: Sequence[float], halt_max_steps: Sequence[int]
) -> np.ndarray:
    """Minimum number of steps of each row of the global batch before it may halt, int32 [steps, batch]; 0: none.

    The paper's exploration, drawn anew at each step: uniform over 2..halt_max_steps with the given probability.
    """
    explored, drawn = uniform(seed, "exploration", (2, batch), steps).swapaxes(0, 1)
    further = np.array(halt_max_steps)[:, None] - 1
    chosen = (explored < np.array(probability)[:, None]) & (further > 0)
    return np.where(chosen, 2 + (drawn * further).astype(np.int32), 0).astype(np.int32)


class Feed:
    """Batches for this worker."""

    def __init__(self, config: RunConfig, dataset: Dataset, backend: Backend, clocks: Clocks | None = None):
        self._config, self._backend = config, backend
        self._sampler, self._augmenter = dataset.sampler(config)
        self._stages = draw_stages(config.data, config.training.steps)
        self._recursion = recursion_stages(config.model, config.training)
        self._questions = dataset.split("train").inputs if config.data.gives_hints else None
        self._count = config.training.batch_size // backend.world
        self._first = backend.worker * self._count
        self._clocks = clocks or Clocks()
        self._drawn: dict[int, AnyBatch] = {}
        """Host batches by step."""

    def batch(self, step: int) -> AnyBatch:
        """This worker's rows of the global batch of `step` (from 1), on the device."""
        started = time.perf_counter()
        if step not in self._drawn:
            ahead = max(1, ROWS_AHEAD // self._count)
            last = max(step, min(step + ahead - 1, self._config.training.steps))
            self._drawn = self._draw(range(step, last + 1))
        host = self._drawn[step]
        made = time.perf_counter()
        batch = type(host)(*(self._backend.place_rows(tensor, 0) for tensor in host))
        self._clocks.feed += made - started
        self._clocks.transfer += time.perf_counter() - made
        return batch

    def _draw(self, steps: range) -> dict[int, AnyBatch]:
        """The batches of some steps."""
        worker, world = self._backend.worker, self._backend.world
        drawn = self._sampler.batches(range(steps.start - 1, steps.stop - 1), worker, world)
        minimum = self._minimum(steps)
        kind: type[AnyBatch]
        arrays: tuple[np.ndarray, ...]
        if isinstance(self._augmenter, HostAugmenter):
            kind, arrays = RowBatch, (*self._augmenter.rows(drawn), minimum)
        else:
            maps = self._augmenter.maps(drawn.puzzles, drawn.copies)
            kind, arrays = Batch, (drawn.rows.astype(np.int32), *maps, minimum)
            if self._questions is not None:
                kind, arrays = HintBatch, (*arrays, *self._hints(steps, self._questions[drawn.rows]))
        parts = zip(*(torch.from_numpy(array).split(self._count) for array in arrays), strict=True)
        return {step: kind(*tensors) for step, tensors in zip(steps, parts, strict=True)}

    def _minimum(self, steps: range) -> np.ndarray:
        """Exploration's minimum of this worker's rows."""
        config, training = self._config, self._config.training
        limits = training.steps, training.exploration, training.exploration_final
        probability = [exploration_at(step, *limits) for step in steps]
        longest = [stage_at(self._recursion, step).recursion.halt_max_steps for step in steps]
        drawn = exploration_minimum(config.seed, steps, training.batch_size, probability, longest)
        return drawn[:, self._first : self._first + self._count].reshape(-1)

    def _hints(self, steps: range, questions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`order` and `hints` of this worker's rows: see `HintBatch`."""
        config = self._config
        rows = config.training.batch_size, self._first, self._count
        keys = [hints.keys_of_step(config.seed, step - 1, *rows) for step in steps]
        order = hints.order(np.concatenate(keys), questions == hints.BLANK)
        ranges = [stage_at(self._stages, step).hints for step in steps]
        counts = [hints.counts(key, *limits) for key, limits in zip(keys, ranges, strict=True)]
        return order, np.concatenate(counts).astype(np.float32)
