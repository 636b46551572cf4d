"""Rows of each training step: a pure function of (seed, step), the same for any number of workers.

An epoch visits every group once, in random order, and draws one puzzle (copy) of it with all its examples in random
order. Epochs form one endless stream; batches may span them.
"""

from typing import NamedTuple, Self

import numpy as np

from trm.data import rng
from trm.data.dataset import PuzzleSet


class SampledRows(NamedTuple):
    """A worker's rows of a step, int64 [rows] each."""

    rows: np.ndarray
    """Example: index into inputs and labels."""
    puzzles: np.ndarray
    """Puzzle of the example: index into puzzle_identifiers."""
    copies: np.ndarray
    """Augmented copy; 0: the original."""


class Sampler:
    """Batches of a set of puzzles.

    Args:
        puzzle_indices: int [puzzles + 1], where each puzzle's examples start.
        group_indices: int [groups + 1], where each group's puzzles start.
        copies: versions of each puzzle made on the fly, including the original (1: no augmentation).
        batch_size: rows per step over all workers.
        seed: any integer.

    Raises:
        ValueError: no puzzles, or an empty batch.
    """

    def __init__(
        self,
        puzzle_indices: np.ndarray,
        group_indices: np.ndarray,
        *,
        copies: int = 1,
        batch_size: int,
        seed: int,
    ):
        self._starts = np.asarray(puzzle_indices, dtype=np.int64)
        self._groups = np.asarray(group_indices, dtype=np.int64)
        self._group_sizes = np.diff(self._groups)
        sizes = np.diff(self._starts)
        if not len(self._group_sizes) or self._group_sizes.min() < 1 or sizes.min() < 1 or batch_size < 1:
            raise ValueError(
                "a sampler needs a batch of at least one row, and groups and puzzles that are not empty"
            )
        self.copies, self.batch_size = copies, batch_size
        # a visit of a group yields one row per example of its first puzzle, whichever copy is drawn
        self._visits = sizes[self._groups[:-1]]
        self._sizes = sizes
        self.epoch_rows = int(self._visits.sum())
        self._single = bool((sizes == 1).all())
        self._order_root = rng.root_key(seed, "epoch")
        self._copy_root = rng.root_key(seed, "copy")
        self._example_root = rng.root_key(seed, "example")
        self._cache: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @classmethod
    def of(cls, puzzles: PuzzleSet, batch_size: int, seed: int) -> Self:
        """The sampler of a set with its `meta.augmentations`."""
        return cls(
            puzzles.puzzle_indices,
            puzzles.group_indices,
            copies=puzzles.meta.augmentations + 1,
            batch_size=batch_size,
            seed=seed,
        )

    def batch(self, step: int, rank: int = 0, world: int = 1) -> SampledRows:
        """Rows of worker `rank` of `world` at a step (from 0): its part of the global batch.

        Raises:
            ValueError: `world` does not divide the batch.
        """
        if self.batch_size % world or not 0 <= rank < world:
            raise ValueError(f"batch {self.batch_size} cannot be divided among {world} workers (rank {rank})")
        size = self.batch_size // world
        return self.rows(step * self.batch_size + rank * size, size)

    def batches(self, steps: range, rank: int = 0, world: int = 1) -> SampledRows:
        """Rows of worker `rank` of `world` at consecutive steps, one after the other: same as `batch` of each."""
        if world == 1:
            return self.rows(steps.start * self.batch_size, len(steps) * self.batch_size)
        parts = (self.batch(step, rank, world) for step in steps)
        return SampledRows(*map(np.concatenate, zip(*parts)))

    def rows(self, begin: int, size: int) -> SampledRows:
        """Rows begin..begin+size-1 of the endless stream of epochs."""
        epochs = range(begin // self.epoch_rows, (begin + size - 1) // self.epoch_rows + 1)
        parts, position = [], begin
        for epoch in epochs:
            stop = min(begin + size, (epoch + 1) * self.epoch_rows)
            parts.append(
                self._rows(epoch, position - epoch * self.epoch_rows, stop - epoch * self.epoch_rows)
            )
            position = stop
        return (
            parts[0] if len(parts) == 1 else SampledRows(*(np.concatenate(arrays) for arrays in zip(*parts)))
        )

    def _rows(self, epoch: int, start: int, stop: int) -> SampledRows:
        order, ends = self._epoch(epoch)
        offsets = np.arange(start, stop)
        visits = offsets if self._single else np.searchsorted(ends, offsets, side="right")
        groups = order[visits]
        puzzles, copies = self._draw_puzzle(epoch, groups)
        rows = self._starts[puzzles]
        if not self._single:
            rows = rows + self._draw_example(
                epoch, groups, puzzles, offsets - ends[visits] + self._visits[groups]
            )
        return SampledRows(rows, puzzles, copies)

    def _epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Order of the groups in an epoch and the end of each visit's rows, cached for the last few epochs."""
        entry = self._cache.get(epoch)
        if entry is None:
            key = int(rng.key(self._order_root, epoch)[0])
            order = rng.shuffled(key, len(self._group_sizes))
            ends = np.empty(0, dtype=np.int64) if self._single else np.cumsum(self._visits[order])
            entry = order, ends
            while len(self._cache) >= 4:
                self._cache.pop(next(iter(self._cache)))
            self._cache[epoch] = entry
        return entry

    def _draw_puzzle(self, epoch: int, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A random puzzle of each group, and a random copy of it."""
        sizes = self._group_sizes[groups]
        chosen = rng.bounded(rng.key(self._copy_root, epoch, groups), sizes * self.copies)
        return self._groups[groups] + chosen // self.copies, chosen % self.copies

    def _draw_example(
        self, epoch: int, groups: np.ndarray, puzzles: np.ndarray, offsets: np.ndarray
    ) -> np.ndarray:
        """Example of the offset-th row of each visit: the puzzle's examples in random order, repeated if it has
        fewer."""
        sizes = self._sizes[puzzles]
        widest = int(sizes.max())
        slots = np.arange(widest)
        keys = rng.key(self._example_root, epoch, groups)
        draws = rng.draw(keys[:, None], slots[None, :]) >> np.uint64(1)
        draws[slots[None, :] >= sizes[:, None]] = np.uint64((1 << 64) - 1)
        order = np.argsort(draws, axis=1, kind="stable")
        chosen: np.ndarray = order[np.arange(len(groups)), offsets % sizes]
        return chosen
