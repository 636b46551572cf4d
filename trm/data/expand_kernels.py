"""Compiled writing of augmented copies; draw for draw the maps of `augment.py`."""

from __future__ import annotations

import numpy as np

from trm.compiled import njit
from trm.tasks.sudoku.kernels import bounded, child_key, shuffle


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


@njit
def expand_turns(turns, copies, inputs, labels, out_inputs, out_labels):
    """As `expand_sudoku` for mazes: copy k is symmetry k mod 8 of the square; turns int16 [8, cells]."""
    row = 0
    for puzzle in range(len(inputs)):
        for copy in range(copies + 1):
            cells = turns[copy % 8]
            for j in range(inputs.shape[1]):
                out_inputs[row, j] = inputs[puzzle, cells[j]]
                out_labels[row, j] = labels[puzzle, cells[j]]
            row += 1


@njit
def move_grids(canvases, shapes, turns, colours, shift, out, side):
    """`arc_augment.apply` with its maps, for canvases of `side`: turn, recolour and shift each grid into out[i].

    shapes, shift int64 [n, 2]; turns int64 [n]; colours uint8 [n, 10].
    """
    for i in range(len(canvases)):
        canvas, target = canvases[i], out[i]
        height, width, number = shapes[i, 0], shapes[i, 1], turns[i]
        swapped = number == 1 or number == 3 or number >= 6
        new_height, new_width = (width, height) if swapped else (height, width)
        top, left = shift[i, 0], shift[i, 1]
        target[:] = 0
        for row in range(new_height):
            for column in range(new_width):
                across, down = (row, column) if swapped else (column, row)
                if number == 2 or number == 3 or number == 5 or number == 7:
                    down = height - 1 - down
                if number == 1 or number == 2 or number == 4 or number == 7:
                    across = width - 1 - across
                target[(top + row) * side + left + column] = colours[i, canvas[down * side + across] - 2] + 2
        if top + new_height < side:
            for column in range(new_width):
                target[(top + new_height) * side + left + column] = 1
        if left + new_width < side:
            for row in range(new_height):
                target[(top + row) * side + left + new_width] = 1
