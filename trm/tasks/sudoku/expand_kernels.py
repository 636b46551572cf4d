"""Compiled augmentation; makes the same draws as the maps of `augment.py`."""

from __future__ import annotations

import numpy as np

from trm.compiled import njit
from trm.data.rng_kernels import bounded, child_key, shuffle


@njit
def _lines(key, position, blocks, size, order, inner, lines):
    """`augment._lines` of one key into `lines`; returns the next draw's position."""
    outer = order[:blocks]
    for j in range(blocks):
        outer[j] = j
    position = shuffle(outer, key, position)
    for block in range(blocks):
        part = inner[block, :size]
        for j in range(size):
            part[j] = j
        position = shuffle(part, key, position)
    for block in range(blocks):
        for j in range(size):
            lines[block * size + j] = outer[block] * size + inner[block, j]
    return position


@njit
def expand_sudoku(root, first, copies, box_rows, box_cols, inputs, labels, out_inputs, out_labels):
    """Rows of copies 0..copies of each puzzle, uint8 [puzzles * (copies + 1), cells]."""
    n = box_rows * box_cols
    values, order = np.empty(n, np.int64), np.empty(n, np.int64)
    inner = np.empty((n, n), np.int64)
    rows, columns = np.empty(n, np.int64), np.empty(n, np.int64)
    token = np.zeros(n + 2, np.uint8)
    token[1] = 1
    row = 0
    for puzzle in range(len(inputs)):
        question, answer = inputs[puzzle], labels[puzzle]
        own = child_key(root, first + puzzle)
        out_inputs[row] = question
        out_labels[row] = answer
        row += 1
        for copy in range(1, copies + 1):
            key = child_key(own, copy)
            for j in range(n):
                values[j] = j
            position = shuffle(values, key, 0)
            for j in range(n):
                token[j + 2] = values[j] + 2
            turned = box_rows == box_cols and bounded(key, position, 2) == 1
            position = _lines(key, position + 1, n // box_rows, box_rows, order, inner, rows)
            _lines(key, position, n // box_cols, box_cols, order, inner, columns)
            new_question, new_answer = out_inputs[row], out_labels[row]
            for i in range(n):
                for j in range(n):
                    if turned:
                        cell = columns[j] * n + rows[i]
                    else:
                        cell = rows[i] * n + columns[j]
                    new_question[i * n + j] = token[question[cell]]
                    new_answer[i * n + j] = token[answer[cell]]
            row += 1
