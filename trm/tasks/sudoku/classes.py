"""Classes of equivalent Sudoku, which belong to one split: puzzles related by a symmetry of the rules.

9x9 puzzles are classified by solution grid (5.5 billion classes), other sizes by puzzle, because they have few classes
of grids (4x4: two).
"""

from __future__ import annotations

import numpy as np

from trm.data import rng
from trm.data.progress import over_rows
from trm.tasks.sudoku.geometry import Geometry

SMALL = (Geometry(2, 2), Geometry(2, 3), Geometry(3, 2))
"""Few enough symmetries to try them all."""


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


def number_rows(rows: np.ndarray) -> np.ndarray:
    """Number distinct rows 0, 1, ... by first appearance: int32 [len(rows)]."""
    if not len(rows):
        return np.zeros(0, dtype=np.int32)
    rows = np.ascontiguousarray(rows)
    packed = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).ravel()
    _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
    numbers = np.empty(len(first), dtype=np.int32)
    numbers[np.argsort(first, kind="stable")] = np.arange(len(first), dtype=np.int32)
    return numbers[inverse]


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
