"""Exhaustive 4x4 Sudoku: all classes of equivalent puzzles, and canonical forms by trying all symmetries.

The 288 solution grids fall into two classes; a puzzle is a grid and a set of shown cells, so the classes of
puzzles are the orbits of cell sets under the automorphisms of the two grids. No search is needed.
"""

from __future__ import annotations

from itertools import permutations, product

import numpy as np

from trm.tasks.sudoku.geometry import Geometry, broken_rule

FOUR = Geometry(2, 2)


def classes_4x4(clues_min: int, clues_max: int) -> tuple[np.ndarray, np.ndarray]:
    """One puzzle of each class of 4x4 Sudoku with one solution and clues_min..clues_max clues.

    clues_max 0: the minimal puzzles, which have several solutions without any one of their clues.

    Returns:
        Questions and answers, uint8 [classes, 16], values 0..4, in a fixed order.
    """
    grids = _all_grids()
    forms = first_seen_labels(grids[:, FOUR.cell_symmetries])  # [288, 128, 16]
    least = _lexicographic_min(forms)
    _, representatives = np.unique(least, axis=0, return_index=True)
    masks = np.arange(1 << 16, dtype=np.uint32)
    clues = _bit_counts(masks)
    questions, answers = [], []
    for index in representatives.tolist():
        grid = grids[index]
        unique = _unique_masks(grids, index)
        if clues_max == 0:
            wanted = unique.copy()
            for bit in range(16):
                held = (masks >> bit) & 1 == 1
                wanted[held] &= ~unique[masks[held] ^ (1 << bit)]
        else:
            wanted = unique & (clues >= clues_min) & (clues <= clues_max)
        own = FOUR.cell_symmetries[(forms[index] == first_seen_labels(grid[None, None])[0, 0]).all(axis=1)]
        chosen = np.unique(_least_masks(masks[wanted], own))
        shown = (chosen[:, None] >> np.arange(16, dtype=np.uint32)) & 1 == 1
        questions.append(np.where(shown, grid, 0))
        answers.append(np.broadcast_to(grid, shown.shape))
    return np.concatenate(questions).astype(np.uint8), np.concatenate(answers).astype(np.uint8)


def first_seen_labels(grids: np.ndarray) -> np.ndarray:
    """Grids [..., cells] with values renamed 1, 2, ... by first appearance; blanks stay 0."""
    flat = grids.reshape(-1, grids.shape[-1])
    rows = np.arange(len(flat))
    names = np.zeros((len(flat), int(flat.max(initial=0)) + 1), dtype=np.uint8)
    seen = np.zeros(len(flat), dtype=np.uint8)
    out = np.empty_like(flat)
    for cell in range(flat.shape[1]):
        value = flat[:, cell]
        fresh = (value > 0) & (names[rows, value] == 0)
        seen += fresh
        names[rows[fresh], value[fresh]] = seen[fresh]
        out[:, cell] = names[rows, value]
    return out.reshape(grids.shape)


def canonical_small(geometry: Geometry, questions: np.ndarray) -> np.ndarray:
    """The smallest of all puzzles equivalent to each question, uint8 [len(questions), cells]: equal for equivalent
    puzzles, different for others. Tries every symmetry, so for 4x4 grids only (6x6 has compiled code)."""
    out = np.empty_like(questions)
    for start in range(0, len(questions), 2048):
        part = questions[start : start + 2048]
        out[start : start + 2048] = _lexicographic_min(first_seen_labels(part[:, geometry.cell_symmetries]))
    return out


def solved_by_singles(geometry: Geometry, questions: np.ndarray) -> np.ndarray:
    """Whether naked and hidden singles alone solve each puzzle: bool [puzzles]. Vectorised, without compiled code."""
    side, cells = geometry.side, geometry.cells
    member = np.zeros((len(geometry.units), cells), dtype=np.int16)
    np.put_along_axis(member, geometry.units.astype(np.int64), 1, axis=1)
    sees = ((member.T @ member > 0) & ~np.eye(cells, dtype=bool)).astype(np.int16)
    shown = questions[:, :, None] == np.arange(1, side + 1)
    can = shown | (questions == 0)[:, :, None]  # [puzzles, cells, values]
    while True:
        single = can & (can.sum(axis=2, keepdims=True) == 1)
        after = can & ~(np.matmul(sees, single.astype(np.int16)) > 0)
        places = np.matmul(member, after.astype(np.int16)) == 1  # [puzzles, units, values]
        hidden = after & (np.matmul(member.T, places.astype(np.int16)) > 0)
        after = np.where(hidden.any(axis=2, keepdims=True), hidden, after)
        if (after == can).all():
            return np.asarray((can.sum(axis=2) == 1).all(axis=1))
        can = after


def _lexicographic_min(forms: np.ndarray) -> np.ndarray:
    """The smallest row of each group: [groups, rows, cells] -> [groups, cells]."""
    alive = np.ones(forms.shape[:2], dtype=bool)
    for cell in range(forms.shape[2]):
        column = np.where(alive, forms[:, :, cell], 255)
        alive &= column == column.min(axis=1, keepdims=True)
    least: np.ndarray = forms[np.arange(len(forms)), alive.argmax(axis=1)]
    return least


def _all_grids() -> np.ndarray:
    lines = np.array(list(permutations(range(1, 5))), dtype=np.uint8)
    bands = np.array([(a, b) for a, b in product(range(24), repeat=2) if not (lines[a] == lines[b]).any()])
    upper = lines[bands].reshape(-1, 8)
    boxes = np.sort(upper.reshape(-1, 2, 2, 2).transpose(0, 2, 1, 3).reshape(-1, 2, 4), axis=2)
    upper = upper[(boxes == np.arange(1, 5)).all(axis=(1, 2))]
    pairs = np.concatenate([np.repeat(upper, len(upper), axis=0), np.tile(upper, (len(upper), 1))], axis=1)
    grids: np.ndarray = pairs[~broken_rule(FOUR, pairs)]
    return grids


def _unique_masks(grids: np.ndarray, index: int) -> np.ndarray:
    """Which sets of shown cells (bit i: cell i) leave grid `index` as the only solution: bool [65536]."""
    agree = (np.delete(grids, index, axis=0) == grids[index]) @ (1 << np.arange(16, dtype=np.uint32))
    masks = np.arange(1 << 16, dtype=np.uint32)
    unique = np.ones(1 << 16, dtype=bool)
    for other in np.unique(agree):
        unique &= (masks & ~other) != 0
    return unique


def _least_masks(masks: np.ndarray, symmetries: np.ndarray) -> np.ndarray:
    least = np.full(len(masks), 1 << 16, dtype=np.uint32)
    for cells in symmetries:
        moved = np.zeros(len(masks), dtype=np.uint32)
        for target, source in enumerate(cells.tolist()):
            moved |= ((masks >> source) & 1) << np.uint32(target)
        np.minimum(least, moved, out=least)
    return least


def _bit_counts(masks: np.ndarray) -> np.ndarray:
    return sum(((masks >> bit) & 1 for bit in range(16)), np.zeros(len(masks), dtype=np.uint32))
