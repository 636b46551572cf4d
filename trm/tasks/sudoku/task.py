"""Sudoku as a task."""

import numpy as np

from trm.data import rng
from trm.data.dataset import Meta, PuzzleSet
from trm.data.official import official_files
from trm.data.pool import Pool
from trm.study.schema import DataConfig
from trm.tasks.base import Augmenter, Files, Task
from trm.tasks.grids import hashes
from trm.tasks.marginals import Symmetric
from trm.tasks.sudoku import pool
from trm.tasks.sudoku.classes import class_keys
from trm.tasks.sudoku.geometry import SYMBOLS, Geometry, broken_rule, sudoku_maps
from trm.tasks.sudoku.spec import SPEC


class SudokuAugmenter(Augmenter):
    """A copy is under a random symmetry of the rules, a pure function of (seed, puzzle, copy)."""

    def __init__(self, meta: Meta):
        super().__init__(meta)
        self._geometry = Geometry(meta.box_rows, meta.box_cols)
        self._root = rng.root_key(meta.seed, "augment")

    def maps(self, puzzles: np.ndarray, copies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tokens, cells = super().maps(puzzles, copies)
        changed = np.flatnonzero(copies)
        if len(changed):
            keys = rng.key(self._root, np.asarray(puzzles)[changed], np.asarray(copies)[changed])
            tokens[changed], cells[changed] = sudoku_maps(self._geometry, keys)
        return tokens, cells


class Sudoku(Task):
    """Sudoku with boxes of any size."""

    name = "sudoku"
    rating = "guesses"

    def pool(self, config: DataConfig, files: Files) -> Pool:
        if config.source == "generate":
            return pool.generated_pool(config)
        if config.source == "official":
            return pool.csv_pool(config, official_files(self.name), divided=True)
        return pool.csv_pool(config, files)

    def symmetries(self, config: DataConfig, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return sudoku_maps(Geometry(config.box_rows, config.box_cols), keys)

    def keys(self, config: DataConfig, questions: np.ndarray, answers: np.ndarray) -> np.ndarray:
        geometry = Geometry(config.box_rows, config.box_cols)
        solved = ~broken_rule(geometry, np.maximum(answers, 1) - 1)
        return hashes(class_keys(geometry, np.maximum(questions[solved], 1) - 1, answers[solved] - 1)[0])

    def symmetric(self, meta: Meta) -> Symmetric:
        digits = tuple(range(2, meta.vocab_size))
        return Symmetric("digit", digits, digits, np.zeros(meta.seq_len, dtype=np.int64))

    def augmenter(self, train: PuzzleSet) -> Augmenter:
        return SudokuAugmenter(train.meta)

    def lines(self, tokens: np.ndarray, meta: Meta) -> list[str]:
        side, symbols = round(len(tokens) ** 0.5), "?." + SYMBOLS
        rows, columns = (
            meta.box_rows or side,
            meta.box_cols or side,
        )  # 0: a data set of other tools does not say
        lines: list[str] = []
        for k, row in enumerate(tokens.reshape(side, side).tolist()):
            line = "".join(symbols[token] for token in row)
            lines += [""] * (k > 0 and k % rows == 0)
            lines.append(" ".join(line[at : at + columns] for at in range(0, side, columns)))
        return lines

    def guesses(self, config: DataConfig, inputs: np.ndarray, labels: np.ndarray) -> dict[str, float | None]:
        rules = []
        for first in range(0, len(inputs), 4096):
            part = inputs[first : first + 4096]
            blank = part == SPEC.blank
            left = candidates(part, config.box_rows, config.box_cols)
            share, count = np.where(blank, 1 / np.maximum(1, left), 0).sum(1), blank.sum(1)
            rules.extend((share[count > 0] / count[count > 0]).tolist())
        uniform = 1 / (config.box_rows * config.box_cols)
        return {"uniform": uniform, "rules": float(np.mean(rules)) if rules else None}


def candidates(inputs: np.ndarray, box_rows: int, box_cols: int) -> np.ndarray:
    """Number of digits that row, column and box leave for each cell, int64 [N, S]; `inputs` uint8 [N, S], 1: blank."""
    geometry = Geometry(box_rows, box_cols)
    digits = inputs[:, :, None] == np.arange(2, geometry.side + 2, dtype=inputs.dtype)
    seen = np.zeros_like(digits)
    for unit in geometry.units:
        seen[:, unit] |= digits[:, unit].any(axis=1, keepdims=True)
    return np.asarray(geometry.side - seen.sum(2))


TASK = Sudoku()
