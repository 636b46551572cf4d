"""Augmented copies of Sudoku: random symmetries of the rules, a pure function of (seed, puzzle, copy)."""

from __future__ import annotations

import numpy as np

from trm.data import rng
from trm.data.dataset import Meta
from trm.tasks.base import Augmenter
from trm.tasks.sudoku.geometry import Geometry


def sudoku_maps(geometry: Geometry, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A random symmetry of the rules for each key: digits, transposition (square boxes), bands, rows within bands,
    stacks, columns within stacks.

    Returns:
        token_map uint8 [keys, n + 2] and cell_map int16 [keys, n * n].
    """
    n, height, width = geometry.side, geometry.box_rows, geometry.box_cols
    count = len(keys)
    tokens = np.zeros((count, n + 2), dtype=np.uint8)
    tokens[:, 1] = 1
    tokens[:, 2:] = rng.permutations(keys, 0, n) + 2
    position = n - 1
    turned = rng.bounded(rng.draw(keys, position), 2 if geometry.transposable else 1)[:, None, None]
    position += 1
    rows, position = _lines(keys, position, n // height, height)
    columns, position = _lines(keys, position, n // width, width)
    rows, columns = rows[:, :, None], columns[:, None, :]
    cells = np.where(turned, columns * n + rows, rows * n + columns)
    return tokens, cells.reshape(count, n * n).astype(np.int16)


def _lines(keys: np.ndarray, position: int, blocks: int, size: int) -> tuple[np.ndarray, int]:
    """A random order of lines that keeps blocks together, int64 [keys, blocks * size], and the next draw's position."""
    outer = rng.permutations(keys, position, blocks)
    position += blocks - 1
    inner = []
    for _ in range(blocks):
        inner.append(rng.permutations(keys, position, size))
        position += size - 1
    lines = outer[:, :, None] * size + np.stack(inner, axis=1)
    return lines.reshape(len(keys), blocks * size), position


class SudokuAugmenter(Augmenter):
    """Maps of a data set's copies."""

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
