"""Classes of equivalent Sudoku, which belong to one split: puzzles related by a symmetry of the rules.

9x9 puzzles are classified by solution grid (5.5 billion classes), other sizes by puzzle, because they have few classes
of grids (4x4: two). The classes of 4x4 puzzles are listed without a search: a puzzle is one of the 288 solution grids
and a set of shown cells, so they are the orbits of cell sets under the automorphisms of the two classes' grids.
"""

from itertools import permutations

import numpy as np

from trm.data import rng
from trm.data.progress import over_rows
from trm.tasks.sudoku.geometry import Geometry, broken_rule

FOUR = Geometry(2, 2)
SMALL = (FOUR, Geometry(2, 3), Geometry(3, 2))
"""Few enough symmetries to try them all."""
_CELLS = np.arange(16, dtype=np.uint32)
_MASKS = np.arange(1 << 16, dtype=np.uint32)
"""Every set of shown cells; bit i: cell i."""


def class_keys(
    geometry: Geometry, questions: np.ndarray, answers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Keys of each puzzle's class, and of the class that determines its split: integers, one row per puzzle.

    Args:
        questions, answers: values, uint8 [puzzles, cells].

    Returns:
        For 4x4, 6x6 and 9x9, rows are equal if and only if puzzles are equivalent (second key of 9x9: grids). For other
        sizes equivalent puzzles have equal rows, and others differ unless colour refinement fails to separate them.
    """
    if geometry == Geometry(3, 3):
        from trm.tasks.sudoku.canonical import canonical_keys

        keys = canonical_keys(questions, answers)
        return keys, np.ascontiguousarray(keys[:, :4])
    if geometry in SMALL:
        keys = _tried_symmetries(geometry, questions)
    else:
        keys = np.concatenate([_refined(geometry, questions[i : i + 256], answers[i : i + 256])
                               for i in range(0, len(questions), 256)])  # fmt: skip
    return keys, keys


def pairs(numbers: np.ndarray) -> int:
    """Number of pairs of puzzles in a common class."""
    counts = np.bincount(numbers).astype(np.int64)
    return int((counts * (counts - 1) // 2).sum())


def _tried_symmetries(geometry: Geometry, questions: np.ndarray) -> np.ndarray:
    from trm.tasks.sudoku.kernels import canonical_batch

    forms = np.empty_like(questions)

    def work(start: int, stop: int) -> None:
        canonical_batch(questions[start:stop], geometry.cell_symmetries, forms[start:stop])

    over_rows(work, len(questions), 256, "classes", "puzzles")
    return forms


def _refined(geometry: Geometry, questions: np.ndarray, answers: np.ndarray, rounds: int = 6) -> np.ndarray:
    """Hash of each puzzle, invariant under symmetries, uint64 [puzzles, 2]: colours of cells, refined by the colours in
    their row, column, box and of cells with equal value (as in the Weisfeiler-Leman test)."""
    n, count = geometry.side, len(questions)
    colours = rng.mix(
        (questions > 0).astype(np.uint64)[None] + np.arange(1, 3, dtype=np.uint64)[:, None, None]
    )
    unit_of = np.empty((3, geometry.cells), dtype=np.int64)
    for number, unit in enumerate(geometry.units):
        unit_of[number // n, unit] = number
    puzzle = np.arange(count)[:, None]
    for _ in range(rounds):
        parts = []
        for seed in range(2):
            own = colours[seed]
            sums = np.stack([own[:, unit].sum(axis=1) for unit in geometry.units], axis=1)
            by_value = np.zeros((count, n + 1), dtype=np.uint64)
            np.add.at(by_value, (puzzle, answers.astype(np.int64)), own)
            lines = [rng.mix(sums[:, unit_of[kind]]) for kind in range(3)]
            values = rng.mix(rng.mix(by_value[puzzle, answers.astype(np.int64)]) ^ own)
            # rows and columns alike, because a transposition swaps them
            parts.append(rng.mix(own) + lines[0] + lines[1] + rng.mix(lines[2]) + values)
        colours = rng.mix(np.stack(parts))
    return np.ascontiguousarray(rng.mix(colours).sum(axis=2).T)


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
