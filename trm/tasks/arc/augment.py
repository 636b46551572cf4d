"""Augmented copies of ARC tasks: one rotation or reflection and one recolouring per copy, one shift per example.

A copy of an example is a token map and two cell maps (its input and output may differ in size): cell i of the copy
shows `token_map[row[cell_map[i]]]`, where positions S and S + 1 (S cells of a canvas) mean padding and the
end-of-grid token. Colour 0 stays; copy 0 is the original; in each copy one example is not shifted, like test inputs.
"""

from __future__ import annotations

import numpy as np

from trm.data import rng
from trm.data.dataset import PuzzleSet
from trm.data.sampler import SampledRows
from trm.tasks.arc.arc import COLOUR, EOS, INVERSE_TURN, PAD, side_of, turn


def copy_transforms(
    root: int, tasks: np.ndarray, copies: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The turn (int64 [n], 0-7) and recolouring (uint8 [n, 10]) of each copy of each task, and the copies' keys."""
    keys = rng.key(root, tasks, copies)
    turns = np.where(copies > 0, rng.bounded(rng.draw(keys, 0), 8), 0)
    colours = np.zeros((len(keys), 10), dtype=np.uint8)
    colours[:, 1:] = rng.permutations(keys, 1, 9) + 1
    colours[copies == 0] = np.arange(10)
    return turns, colours, keys


def sizes(canvases: np.ndarray) -> np.ndarray:
    """Rows and columns of the grid in the top left corner of each canvas: int64 [n, 2]."""
    side = side_of(canvases.shape[1])
    grids = canvases.reshape(-1, side, side) >= COLOUR
    return np.stack([grids[:, :, 0].sum(axis=1), grids[:, 0, :].sum(axis=1)], axis=1)


def token_maps(colours: np.ndarray) -> np.ndarray:
    """uint8 [n, 12]: padding and end of grid are kept, colours permuted."""
    return np.concatenate(
        [np.tile(np.array([PAD, EOS], dtype=np.uint8), (len(colours), 1)), colours + COLOUR], axis=1
    )


def cell_maps(shapes: np.ndarray, turns: np.ndarray, shift: np.ndarray, side: int) -> np.ndarray:
    """Source positions of turned and shifted grids, int16 [n, side * side].

    Args:
        shapes: int [n, 2], rows and columns of the originals.
        turns: int [n], see `arc.turn`.
        shift: int [n, 2], rows and columns that the turned grid moves down and right.
        side: rows and columns of a canvas.
    """
    height, width = (shapes[:, k, None].astype(np.int32) for k in range(2))
    number = turns[:, None]
    swapped = np.isin(number, (1, 3, 6, 7))
    new_height, new_width = np.where(swapped, width, height), np.where(swapped, height, width)
    cell = np.arange(side * side, dtype=np.int32)[None]
    row, column = cell // side - shift[:, 0, None], cell % side - shift[:, 1, None]
    # the original's row: r, c, h-1-r or h-1-c; and its column alike
    down, across = height - 1, width - 1
    source_row = np.choose(
        number, (row, column, down - row, down - column, row, down - row, column, down - column)
    )
    source_column = np.choose(
        number, (column, across - row, across - column, row, across - column, column, row, across - row)
    )
    in_rows, in_columns = (row >= 0) & (row < new_height), (column >= 0) & (column < new_width)
    ends = (row == new_height) & in_columns | (column == new_width) & in_rows
    found = np.where(in_rows & in_columns, source_row * side + source_column,
                     np.where(ends, side * side + 1, side * side))  # fmt: skip
    return found.astype(np.int16)


def shifts(keys: np.ndarray, example: np.ndarray, count: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Shift of each example of a copy, int64 [n, 2]: uniform in 0..room, none for one random example of the copy.

    Args:
        keys: uint64 [n], the copies' keys.
        example, count: int [n], number of the example in its task and how many there are.
        room: int [n, 2], free rows and columns next to the larger of input and output after rotation.
    """
    still = rng.bounded(rng.draw(keys, 10), count) == example
    positions = 11 + 2 * example
    drawn = np.stack([rng.bounded(rng.draw(keys, positions + k), room[:, k] + 1) for k in range(2)], axis=1)
    return np.where(still[:, None], 0, drawn)


def apply(rows: np.ndarray, token_map: np.ndarray, cell_map: np.ndarray) -> np.ndarray:
    """Augmented canvases, uint8 [n, S]."""
    ends = np.tile(np.array([PAD, EOS], dtype=np.uint8), (len(rows), 1))
    moved = np.take_along_axis(np.concatenate([rows, ends], axis=1), cell_map.astype(np.int64), axis=1)
    return np.take_along_axis(token_map, moved.astype(np.int64), axis=1)


def undo(grid: np.ndarray, number: int, colours: np.ndarray) -> np.ndarray:
    """The original frame's grid of a prediction (colours) for a copy with this turn and recolouring."""
    return turn(np.argsort(colours).astype(np.uint8)[grid], INVERSE_TURN[number])


def copy_name(task: str, number: int, colours: np.ndarray) -> str:
    """Name of an augmented task, as the reference tools write and parse it."""
    return f"{task}|||t{number}|||{''.join(map(str, colours.tolist()))}"


class ArcAugmenter:
    """Maps of the copies of a split's examples.

    Args:
        puzzles: a split of originals.
        shifted: whether copies are shifted as in training; test inputs never are.
    """

    def __init__(self, puzzles: PuzzleSet, shifted: bool = True):
        meta = puzzles.meta
        self._root = rng.root_key(meta.seed, "augment")
        self._copies, self._shifted = meta.augmentations + 1, shifted
        puzzle = puzzles.puzzle_of_example
        self._first_identifier = puzzles.puzzle_identifiers[puzzle].astype(np.int64)
        self._task = (self._first_identifier - 1) // self._copies
        self._example = np.arange(puzzles.examples) - puzzles.puzzle_indices[puzzle]
        self._count = np.diff(puzzles.puzzle_indices)[puzzle].astype(np.int64)
        self.input_sizes, self.label_sizes = sizes(puzzles.inputs), sizes(puzzles.labels)
        self._inputs, self._labels = puzzles.inputs, puzzles.labels
        self._side = side_of(meta.seq_len)

    def maps(self, rows: np.ndarray, copies: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Maps of copy `copies[i]` of example `rows[i]`.

        Returns:
            token_map uint8 [n, 12]; cell maps of inputs and of labels, int16 [n, S], to be used by `apply`.
        """
        rows = np.asarray(rows)
        turns, colours, shift = self.transforms(rows, copies)
        inputs, labels = (
            cell_maps(shapes[rows], turns, shift, self._side)
            for shapes in (self.input_sizes, self.label_sizes)
        )
        return token_maps(colours), inputs, labels

    def canvases(self, rows: np.ndarray, copies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels of copy `copies[i]` of example `rows[i]`, uint8 [n, S] each. Made on the host, because the
        maps for the device would be larger than the copies."""
        from trm.tasks.arc.kernels import move_grids

        moves = self.transforms(rows, copies)
        found = []
        for grids, shapes in ((self._inputs, self.input_sizes), (self._labels, self.label_sizes)):
            out = np.empty((len(rows), self._side**2), dtype=np.uint8)
            move_grids(grids[rows], shapes[rows], *moves, out, self._side)
            found.append(out)
        return found[0], found[1]

    def rows(self, batch: SampledRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What a training step sees of a sampler's batch: inputs, labels uint8 [n, S], puzzle identifiers int32 [n]."""
        return *self.canvases(batch.rows, batch.copies), self.identifiers(batch.rows, batch.copies)

    def transforms(self, rows: np.ndarray, copies: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Turn (int64 [n]), recolouring (uint8 [n, 10]) and shift (int64 [n, 2]) of copies of examples."""
        rows, copies = np.asarray(rows), np.asarray(copies)
        turns, colours, keys = copy_transforms(self._root, self._task[rows], copies)
        shift = np.zeros((len(rows), 2), dtype=np.int64)
        if self._shifted:
            larger = np.maximum(self.input_sizes[rows], self.label_sizes[rows])
            larger = np.where(np.isin(turns, (1, 3, 6, 7))[:, None], larger[:, ::-1], larger)
            drawn = shifts(keys, self._example[rows], self._count[rows], self._side - larger)
            shift = np.where(copies[:, None] > 0, drawn, 0)
        return turns, colours, shift

    def identifiers(self, rows: np.ndarray, copies: np.ndarray) -> np.ndarray:
        """Puzzle identifier of each copy, int32 [n]: every augmented task has its own."""
        return np.asarray(self._first_identifier[rows] + copies, np.int32)
