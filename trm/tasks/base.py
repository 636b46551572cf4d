"""Interface of a task: puzzles, augmented copies, text form, and baselines without learning.

A task is a folder with `spec.py` (SPEC: identity and sizes) and `task.py` (TASK), and a line in
`trm.study.schema.TASKS`.
"""

import base64
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from trm.data import hints, rng
from trm.data.dataset import Meta, PuzzleSet, one_example_set
from trm.data.pool import Pool
from trm.data.progress import over_rows
from trm.data.sampler import SampledRows
from trm.data.splits import Splits
from trm.study.dataset_identity import shape
from trm.study.schema import DataConfig
from trm.tasks.marginals import Symmetric

Files = list[tuple[str, Path]]
"""Name and local path of each input file."""
SAMPLE = 2**17
"""Training puzzles whose keys a data set and its runs keep."""


class Augmenter:
    """Makes copies on the device: cell i of a copy is `token_map[row[cell_map[i]]]`; copy 0 is the original.

    The base class makes identical copies.
    """

    def __init__(self, meta: Meta):
        self.meta = meta

    def maps(self, puzzles: np.ndarray, copies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Maps of copy `copies[i]` of puzzle `puzzles[i]` of the data set.

        Returns:
            token_map uint8 [b, vocab] and cell_map int16 [b, cells].
        """
        tokens = np.tile(np.arange(self.meta.vocab_size, dtype=np.uint8), (len(puzzles), 1))
        cells = np.tile(np.arange(self.meta.seq_len, dtype=np.int16), (len(puzzles), 1))
        return tokens, cells


def moved(grids: np.ndarray, maps: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Grids (uint8 [n, cells]) under token maps and cell maps as of `Augmenter.maps`."""
    tokens, cells = maps
    return np.take_along_axis(tokens, np.take_along_axis(grids, cells, axis=1), axis=1)


@runtime_checkable
class HostAugmenter(Protocol):
    """Makes copies on the host, for tasks with maps larger than the copies."""

    def rows(self, batch: SampledRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Inputs, labels (uint8 [b, cells]) and puzzle identifiers (int32 [b]) of a sampler's batch."""
        ...


class Task(ABC):
    """One kind of puzzle."""

    name: str
    rating = "rating"
    """What a puzzle's rating counts."""

    @abstractmethod
    def pool(self, config: DataConfig, files: Files) -> Pool:
        """All puzzles of `config.source`: generated, or read from `files` and validated.

        Raises:
            UserError: malformed input, or a config that cannot be satisfied.
        """

    def symmetries(self, config: DataConfig, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """One uniformly random symmetry of the rules for each key, as `Augmenter.maps`; None: the task has none."""
        return None

    def keys(self, config: DataConfig, questions: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """One number for each puzzle, equal for those that a symmetry of the rules relates.

        Args:
            questions, answers: uint8 [puzzles, cells], tokens.

        Returns:
            uint64 [puzzles]; empty: the task's puzzles are told apart by their identifiers.
        """
        return np.zeros(0, dtype=np.uint64)

    def keys_of(self, config: DataConfig, puzzles: PuzzleSet, most: int | None = None) -> np.ndarray:
        """`keys` of a split's originals, or of at most `most` of them, evenly spaced."""
        rows = puzzles.puzzle_indices[puzzles.group_indices[:-1]]
        if most and len(rows) > most:
            rows = rows[np.arange(most) * len(rows) // most]
        return self.keys(config, puzzles.inputs[rows], puzzles.labels[rows])

    def train_keys(self, config: DataConfig, train: PuzzleSet) -> str:
        """Keys of `SAMPLE` training puzzles at most: what a data set and its runs keep, uint64 as base64."""
        return base64.b64encode(self.keys_of(config, train, SAMPLE).tobytes()).decode()

    def symmetric(self, meta: Meta) -> Symmetric | None:
        """Marginals that the symmetries make uniform, for `trm data inspect`; None: nothing is compared."""
        return None

    def move(self, config: DataConfig, pool: Pool) -> None:
        """Put the puzzles of a pool each under one random symmetry, question and answer alike.

        Published collections are often in a canonical form or sorted, which a model could learn instead of the rules.
        """
        root = rng.root_key(config.seed, "symmetry")

        def work(start: int, stop: int) -> None:
            if maps := self.symmetries(config, rng.key(root, np.arange(start, stop))):
                for grids in (pool.questions, pool.answers):
                    grids[start:stop] = moved(grids[start:stop], maps)

        over_rows(work, pool.puzzles, 4096, "random symmetries", "puzzles")

    def sets(
        self, config: DataConfig, pool: Pool, splits: Splits
    ) -> tuple[list[PuzzleSet], list[str], dict[str, Any]]:
        """Train, validation and test sets, the identifiers' names, and further entries of the manifest."""
        sizes = shape(config)
        meta = Meta(config.task, sizes.seq_len, sizes.vocab_size, sizes.num_puzzle_identifiers or 1)

        def puzzles(members: np.ndarray, held_out: bool) -> PuzzleSet:
            questions = pool.questions[members]
            if held_out and config.held_out_hints != (0, 0):
                keys = rng.key(rng.root_key(config.seed, "held out"), members)
                questions = hints.give(questions, pool.answers[members], keys, config.held_out_hints)
            originals = one_example_set(questions, pool.answers[members], meta)
            return replace(originals, ratings=pool.ratings[members])

        parts = (splits.train, False), (splits.validation, True), (splits.test, True)
        return [puzzles(*part) for part in parts], ["<blank>"], {}

    def augmenter(self, train: PuzzleSet) -> Augmenter | HostAugmenter:
        """The augmenter of the training puzzles."""
        return Augmenter(train.meta)

    @abstractmethod
    def lines(self, tokens: np.ndarray, meta: Meta) -> list[str]:
        """A puzzle of a data set as lines of text."""

    def guesses(self, config: DataConfig, inputs: np.ndarray, labels: np.ndarray) -> dict[str, float | None]:
        """Baselines without learning. `uniform`, `rules`: expected accuracy on blank cells of a uniform guess, and of a
        guess among the candidates that the rules leave; `exact`: exact accuracy of a simple method."""
        return {"uniform": None, "rules": None}
