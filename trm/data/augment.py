"""Augmented copies as pure functions of (seed, puzzle, copy); copy 0 is the original.

A copy is two maps: cell i of the copy shows `token_map[row[cell_map[i]]]`. NumPy, PyTorch (on the device, by gathers)
and the compiled writer of `expand.py` apply the same maps, so what is trained on equals what would be written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trm.data import rng
from trm.tasks.sudoku.geometry import Geometry


def sudoku_maps(geometry: Geometry, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A random symmetry of the rules for each key: digits, transposition (square boxes), bands, rows in bands, stacks,
    columns in stacks.

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
    """A random order of lines that keeps blocks together: int64 [keys, blocks * size], and the next draw's position."""
    outer = rng.permutations(keys, position, blocks)
    position += blocks - 1
    inner = []
    for _ in range(blocks):
        inner.append(rng.permutations(keys, position, size))
        position += size - 1
    lines = outer[:, :, None] * size + np.stack(inner, axis=1)
    return lines.reshape(len(keys), blocks * size), position


def dihedral_cells(side: int) -> np.ndarray:
    """The 8 symmetries of a square as source cells, int16 [8, side * side]; the first is the identity.

    Numbers 0-3: turned counter-clockwise by 0-3 quarters; 4: mirrored left-right; 5: mirrored top-bottom; 6:
    transposed; 7: transposed along the other diagonal.
    """
    cell = np.arange(side * side).reshape(side, side)
    views = [np.rot90(cell, quarter) for quarter in range(4)]
    views += [np.fliplr(cell), np.flipud(cell), cell.T, np.rot90(cell.T, 2)]
    return np.stack([view.reshape(-1) for view in views]).astype(np.int16)


class Augmenter:
    """Maps of a data set's augmented copies.

    Args:
        meta: the data set's `Meta` (task, sizes, seed).
    """

    def __init__(self, meta: Any):
        self.meta = meta
        self._root = rng.root_key(meta.seed, "augment")
        if meta.task == "sudoku":
            self._geometry = Geometry(meta.box_rows, meta.box_cols)
        elif meta.task == "maze":
            self.turns = dihedral_cells(round(meta.seq_len**0.5))

    def maps(self, puzzles: np.ndarray, copies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Maps of copy `copies[i]` of puzzle `puzzles[i]` (numbers in the data set).

        Returns:
            token_map uint8 [b, vocab] and cell_map int16 [b, cells].
        """
        puzzles, copies = np.asarray(puzzles), np.asarray(copies)
        if self.meta.task == "arc" and copies.any():
            raise ValueError("the copies of ARC tasks are made by arc_augment.ArcAugmenter")
        tokens = np.tile(np.arange(self.meta.vocab_size, dtype=np.uint8), (len(puzzles), 1))
        cells = np.tile(np.arange(self.meta.seq_len, dtype=np.int16), (len(puzzles), 1))
        if self.meta.task == "maze":
            return tokens, self.turns[copies % 8]
        changed = np.flatnonzero(copies)
        if self.meta.task == "sudoku" and len(changed):
            keys = rng.key(self._root, puzzles[changed], copies[changed])
            tokens[changed], cells[changed] = sudoku_maps(self._geometry, keys)
        return tokens, cells


def apply_numpy(rows: np.ndarray, token_map: np.ndarray, cell_map: np.ndarray) -> np.ndarray:
    """Augmented rows, uint8 [b, cells], of rows uint8 [b, cells]."""
    moved = np.take_along_axis(rows, cell_map.astype(np.int64), axis=1)
    return np.take_along_axis(token_map, moved.astype(np.int64), axis=1)


def apply_torch(inputs: Any, labels: Any, rows: Any, token_map: Any, cell_map: Any) -> tuple[Any, Any]:
    """Augmented inputs and labels on the device that holds the originals.

    Args:
        inputs, labels: uint8 [examples, cells], the resident originals.
        rows: int64 [b], which examples.
        token_map, cell_map: tensors of `Augmenter.maps`.

    Returns:
        Two int64 [b, cells].
    """
    cells, tokens = cell_map.long(), token_map.long()
    both = (inputs.index_select(0, rows), labels.index_select(0, rows))
    question, answer = (tokens.gather(1, values.long().gather(1, cells)) for values in both)
    return question, answer
