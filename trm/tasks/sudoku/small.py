"""All classes of equivalent 4x4 Sudoku puzzles.

The 288 solution grids fall into two classes. A puzzle is a grid and a set of shown cells, so the classes of puzzles are
the orbits of cell sets under the automorphisms of the two grids. No search is needed.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np

from trm.tasks.sudoku.geometry import Geometry, broken_rule

FOUR = Geometry(2, 2)
_CELLS = np.arange(16, dtype=np.uint32)
_MASKS = np.arange(1 << 16, dtype=np.uint32)
"""Every set of shown cells; bit i: cell i."""


def classes_4x4(clues_min: int, clues_max: int) -> tuple[np.ndarray, np.ndarray]:
    """One puzzle of each class of 4x4 Sudoku with one solution and clues_min..clues_max clues.

    clues_max 0: the minimal puzzles, in which no clue can be left out.

    Returns:
        Questions and answers, uint8 [classes, 16], values 0..4, in a fixed order.
    """
    grids = _all_grids()
    forms = _form_numbers(grids[:, FOUR.cell_symmetries])
    _, representatives = np.unique(forms.min(axis=1), return_index=True)
    clues = np.bitwise_count(_MASKS)
    questions, answers = [], []
    for index in representatives.tolist():
        grid = grids[index]
        unique = _unique_masks(grids, index)
        if clues_max == 0:
            wanted = unique.copy()
            for bit in range(16):
                shown = (_MASKS >> bit) & 1 == 1
                wanted[shown] &= ~unique[_MASKS[shown] ^ (1 << bit)]
        else:
            wanted = unique & (clues >= clues_min) & (clues <= clues_max)
        automorphisms = FOUR.cell_symmetries[forms[index] == forms[index, 0]]  # the first one is the identity
        chosen = np.unique(_least_masks(_MASKS[wanted], automorphisms))
        shown = (chosen[:, None] >> _CELLS) & 1 == 1
        questions.append(np.where(shown, grid, 0))
        answers.append(np.broadcast_to(grid, shown.shape))
    return np.concatenate(questions).astype(np.uint8), np.concatenate(answers).astype(np.uint8)


def _all_grids() -> np.ndarray:
    """Solution grids in lexicographic order, uint8 [288, 16]."""
    lines = np.array(list(permutations(range(1, 5))), dtype=np.uint8)
    grids = lines[np.indices((24,) * 4).reshape(4, -1).T].reshape(-1, 16)
    return np.asarray(grids[~broken_rule(FOUR, grids)])


def _form_numbers(grids: np.ndarray) -> np.ndarray:
    """Grids [..., 16] with values renamed 1 to 4 by first appearance, as numbers in their lexicographic order."""
    names = np.argsort(grids[..., :4], axis=-1)
    digits = np.take_along_axis(names, grids.astype(np.int64) - 1, axis=-1)
    return np.asarray(digits @ 4 ** np.arange(15, -1, -1))


def _unique_masks(grids: np.ndarray, index: int) -> np.ndarray:
    """Which masks leave grid `index` as the only solution: bool [65536]."""
    agree = (np.delete(grids, index, axis=0) == grids[index]) @ (1 << _CELLS)
    unique = np.ones(1 << 16, dtype=bool)
    for other in np.unique(agree):
        unique &= (_MASKS & ~other) != 0
    return unique


def _least_masks(masks: np.ndarray, symmetries: np.ndarray) -> np.ndarray:
    """The smallest equivalent of each mask."""
    least = np.full(len(masks), 1 << 16, dtype=np.uint32)
    for cells in symmetries:
        moved = np.zeros(len(masks), dtype=np.uint32)
        for target, source in enumerate(cells.tolist()):
            moved |= ((masks >> source) & 1) << np.uint32(target)
        np.minimum(least, moved, out=least)
    return least
