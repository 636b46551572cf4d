"""Batches mixed from several sources with shares that depend on the step: a pure function of (seed, step)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trm.data import rng
from trm.data.sampler import SampledRows, Sampler
from trm.study.stages import DrawStage


class MixtureSampler:
    """Batches with each source's share of rows; an epoch of a source visits each of its puzzles once.

    Args:
        sources: int [puzzles], index of each puzzle's source; each puzzle has one example and is a group.
        stages: shares by step; over any part of a stage, a source's rows differ from its share by at most one, except
            for the source with the largest share, which takes the rounding errors.
        copies, batch_size, seed: see `Sampler`.

    Raises:
        ValueError: a source with a share has no puzzles.
    """

    def __init__(
        self, sources: np.ndarray, stages: list[DrawStage], *, copies: int, batch_size: int, seed: int
    ):
        self.batch_size = batch_size
        self._root = rng.root_key(seed, "mixture")
        self._members = [np.flatnonzero(sources == number) for number in range(len(stages[0].shares))]
        for number, members in enumerate(self._members):
            if not len(members) and any(stage.shares[number] for stage in stages):
                raise ValueError(f"source {number} has no training puzzle")
        self._samplers = [
            Sampler(
                np.arange(len(members) + 1),
                np.arange(len(members) + 1),
                copies=copies,
                batch_size=batch_size,
                seed=rng.root_key(seed, "mixture") + number,
            )
            if len(members)
            else None
            for number, members in enumerate(self._members)
        ]
        self._stages: list[tuple[int, NDArray[np.int64], NDArray[np.float64]]] = []
        first, done = 0, np.zeros(len(self._members), dtype=np.int64)
        for stage in stages:
            shares = np.array(stage.shares)
            self._stages.append((first, done, shares))
            done = done + self._drawn(shares, stage.last_step - first)
            first = stage.last_step

    def _drawn(self, shares: NDArray[np.float64], steps: int) -> NDArray[np.int64]:
        """Rows of each source in the first `steps` steps of a stage."""
        rows = np.floor(shares * (steps * self.batch_size)).astype(np.int64)
        rows[shares.argmax()] += steps * self.batch_size - rows.sum()
        return rows

    def batch(self, step: int, rank: int = 0, world: int = 1) -> SampledRows:
        """See `Sampler.batch`."""
        first, done, shares = next(stage for stage in reversed(self._stages) if stage[0] <= step)
        before, after = (self._drawn(shares, steps - first) for steps in (step, step + 1))
        parts = []
        spans = zip(self._samplers, self._members, done + before, after - before, strict=True)
        for sampler, members, start, count in spans:
            if sampler and count:
                drawn = sampler.rows(int(start), int(count))
                parts.append(SampledRows(members[drawn.rows], members[drawn.puzzles], drawn.copies))
        order = rng.shuffled(int(rng.key(self._root, step)[0]), self.batch_size)
        size = self.batch_size // world
        own = order[rank * size : (rank + 1) * size]
        return SampledRows(*(np.concatenate(arrays)[own] for arrays in zip(*parts)))
