"""Augmented copies of ARC tasks: one rotation or reflection and one recolouring per copy, one shift per example.

Colour 0 stays; copy 0 is the original. In each copy one example is not shifted, because test inputs never are. A
canvas has S cells.
"""

import math

import numpy as np

from trm.data import rng
from trm.data.dataset import PuzzleSet
from trm.data.sampler import SampledRows
from trm.study.dataset_identity import moves_puzzles
from trm.study.schema import DataConfig
from trm.tasks.arc.arc import COLOUR, INVERSE_TURN, turn
from trm.tasks.grids import dihedral_cells

_CELLS = dihedral_cells(2)
CHAINED = (_CELLS[:, _CELLS][:, :, None] == _CELLS).all(axis=3).argmax(axis=2)
"""int64 [8, 8]: the turn that equals the first turn, then the second."""


def copy_transforms(
    root: int, tasks: np.ndarray, copies: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Turn (int64 [n], 0-7), recolouring (uint8 [n, 10]) and key of each copy of each task."""
    keys = rng.key(root, tasks, copies)
    turns = np.where(copies > 0, rng.bounded(rng.draw(keys, 0), 8), 0)
    colours = np.zeros((len(keys), 10), dtype=np.uint8)
    colours[:, 1:] = rng.permutations(keys, 1, 9) + 1
    colours[copies == 0] = np.arange(10)
    return turns, colours, keys


def symmetries(config: DataConfig, tasks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Turn and recolouring of the tasks of a pool beside their files: random, or none if the tasks are generated."""
    read = np.full(len(tasks), moves_puzzles(config))
    return copy_transforms(rng.root_key(config.seed, "symmetry"), tasks, read)[:2]


def moved_canvases(
    canvases: np.ndarray, shapes: np.ndarray, turns: np.ndarray, colours: np.ndarray, shift: np.ndarray
) -> np.ndarray:
    """Canvases (uint8 [n, S]) with their grids turned, recoloured and shifted, see `kernels.move_grids`."""
    from trm.tasks.arc.kernels import move_grids

    out = np.empty((len(canvases), canvases.shape[1]), dtype=np.uint8)
    move_grids(canvases, shapes, turns, colours, shift, out, math.isqrt(canvases.shape[1]))
    return out


def sizes(canvases: np.ndarray) -> np.ndarray:
    """Rows and columns of the grid in the top left corner of each canvas: int64 [n, 2]."""
    side = math.isqrt(canvases.shape[1])
    grids = canvases.reshape(-1, side, side) >= COLOUR
    return np.stack([grids[:, :, 0].sum(axis=1), grids[:, 0, :].sum(axis=1)], axis=1)


def shifts(keys: np.ndarray, example: np.ndarray, count: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Shift of each example of a copy, int64 [n, 2]: uniform in 0..room, but 0 for one random example of the copy.

    Args:
        keys: uint64 [n], the copies' keys.
        example, count: int [n], index of the example in its task, and number of examples of the task.
        room: int [n, 2], free rows and columns beside the larger of input and output after rotation.
    """
    still = rng.bounded(rng.draw(keys, 10), count) == example
    positions = 11 + 2 * example
    drawn = np.stack([rng.bounded(rng.draw(keys, positions + k), room[:, k] + 1) for k in range(2)], axis=1)
    return np.where(still[:, None], 0, drawn)


def undo(grid: np.ndarray, number: int, colours: np.ndarray) -> np.ndarray:
    """Transform the predicted grid (colours) for a copy with this turn and recolouring back to the original."""
    return turn(np.argsort(colours).astype(np.uint8)[grid], INVERSE_TURN[number])


def copy_name(task: str, number: int, colours: np.ndarray) -> str:
    """Name of an augmented task in the syntax of the reference tools."""
    return f"{task}|||t{number}|||{''.join(map(str, colours.tolist()))}"


class ArcAugmenter:
    """Makes copies on the host: the maps for the device would be larger than the copies.

    Args:
        puzzles: a split of originals.
        shifted: whether copies are shifted, as in training; test inputs never are.
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
        self._side = math.isqrt(meta.seq_len)

    def canvases(self, rows: np.ndarray, copies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels of copy `copies[i]` of example `rows[i]`, uint8 [n, S] each."""
        moves = self.transforms(rows, copies)
        inputs = moved_canvases(self._inputs[rows], self.input_sizes[rows], *moves)
        return inputs, moved_canvases(self._labels[rows], self.label_sizes[rows], *moves)

    def rows(self, batch: SampledRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Inputs, labels (uint8 [n, S]) and puzzle identifiers (int32 [n]) of a sampler's batch."""
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
