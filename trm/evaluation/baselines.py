"""What a method without learning gets: the floor that any model must clear."""

from __future__ import annotations

import numpy as np

from trm.study.schema import DataConfig
from trm.tasks.maze.maze import fill_dead_ends


def candidates(inputs: np.ndarray, box_rows: int, box_cols: int) -> np.ndarray:
    """Digits that row, column and box leave for each cell, int64 [N, S]; `inputs` uint8 [N, S], 1: blank."""
    side = box_rows * box_cols
    cells = np.arange(side * side)
    row, column = cells // side, cells % side
    box = row // box_rows * box_rows + column // box_cols
    seen = np.zeros((len(inputs), side * side, side), dtype=bool)
    digits = inputs[:, :, None] == np.arange(2, side + 2, dtype=inputs.dtype)
    for unit in (row, column, box):
        present = np.zeros((len(inputs), side, side), dtype=bool)
        for which in range(side):
            present[:, which] = digits[:, unit == which].any(1)
        seen |= present[:, unit]
    return side - seen.sum(2)


def guesses(data: DataConfig, inputs: np.ndarray, labels: np.ndarray) -> dict[str, float | None]:
    """Expected blank-cell accuracy (mean over puzzles) of a uniform guess, and of one over the candidates left; for
    mazes the exact accuracy of filling dead ends."""
    if data.task == "maze":
        exact = (fill_dead_ends(inputs) == labels).all(1).mean()
        return {"uniform": 0.5, "rules": None, "exact": float(exact)}  # a cell is on the path or not
    if data.task != "sudoku":
        return {"uniform": None, "rules": None}
    rules = []
    for first in range(0, len(inputs), 4096):
        part = inputs[first : first + 4096]
        blank = part == 1
        share = np.where(blank, 1 / np.maximum(1, candidates(part, data.box_rows, data.box_cols)), 0).sum(1)
        count = blank.sum(1)
        rules.extend((share[count > 0] / count[count > 0]).tolist())
    return {"uniform": 1 / (data.box_rows * data.box_cols), "rules": float(np.mean(rules)) if rules else None}
