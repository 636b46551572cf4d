"""Canonical form of 9x9 Sudoku: the lexicographically smallest solution grid under all 2 x 6^8 x 9! symmetries.

Read row by row, the smallest grid starts with 123456789, then 456 or 457. So it suffices to try each choice of the line
that becomes the first row and of the line in its band that becomes the second (36 ways). At most 18 column orders can
then give the smallest second row, and each determines the order of all other rows. Ties (automorphic grids) are broken
by the pattern of clues.
"""

import numpy as np

from trm.compiled import njit
from trm.data.progress import over_rows

_ORDERS = np.array([[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]], dtype=np.int64)
EQUAL, LESS, GREATER = 0, 1, 2
SAME = np.arange(2, dtype=np.uint8)
"""The identity relabelling, for patterns of clues."""


def canonical_keys(questions: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Exact keys of equivalence classes, uint64 [puzzles, 6], for puzzles uint8 [puzzles, 81] (values, 0 blank).

    Columns 0-3 are equal exactly for equivalent solution grids, all six exactly for equivalent puzzles.
    """
    keys = np.empty((len(questions), 6), dtype=np.uint64)

    def work(start: int, stop: int) -> None:
        _keys_batch(questions[start:stop], answers[start:stop], _ORDERS, keys[start:stop])

    over_rows(work, len(questions), 4096, "canonical forms", "puzzles")
    return keys


@njit
def _keys_batch(questions, answers, orders, keys):
    grid, mask = np.empty(81, np.uint8), np.empty(81, np.uint8)
    for row in range(len(questions)):
        _canonical(questions[row], answers[row], orders, grid, mask)
        # 72 cells in four words of 18 base-9 digits: exact (the first row is always 123456789)
        for word in range(4):
            value = np.uint64(0)
            for j in range(9 + 18 * word, 27 + 18 * word):
                value = value * np.uint64(9) + np.uint64(grid[j] - 1)
            keys[row, word] = value
        for word in range(2):
            value = np.uint64(0)
            for j in range(41 * word, min(81, 41 * word + 41)):
                value = value * np.uint64(2) + np.uint64(mask[j])
            keys[row, 4 + word] = value


@njit
def _canonical(question, answer, orders, best, mask):
    """Write the smallest grid to `best`, and the smallest pattern of clues (1: shown) among ties to `mask`."""
    grid = np.empty((9, 9), np.uint8)
    shown = np.empty((9, 9), np.uint8)
    partner = np.empty(9, np.int64)
    columns = np.empty(9, np.int64)
    rows = np.empty(9, np.int64)
    place = np.empty(10, np.int64)
    label = np.empty(10, np.uint8)
    started = False
    for turn in range(2):
        for i in range(9):
            for j in range(9):
                source = j * 9 + i if turn else i * 9 + j
                grid[i, j] = answer[source]
                shown[i, j] = question[source] > 0
        for first in range(9):
            for j in range(9):
                place[grid[first, j]] = j
            for step in range(1, 3):
                second = first - first % 3 + (first + step) % 3
                # partner[j]: where the first line has the digit that the second line has in column j
                for j in range(9):
                    partner[j] = place[grid[second, j]]
                pure = partner[0] // 3 == partner[1] // 3 and partner[0] // 3 == partner[2] // 3
                if started and not pure and best[11] == 6:
                    continue
                rows[0], rows[1], rows[2] = first, second, first - first % 3 + (first + 3 - step) % 3
                for box in range(3):
                    for number in range(6):
                        for j in range(3):
                            columns[j] = box * 3 + orders[number, j]
                        if pure:
                            for j in range(3, 9):
                                columns[j] = partner[columns[j - 3]]
                        else:
                            home = partner[columns[0]] // 3
                            if partner[columns[1]] // 3 != home:
                                continue
                            columns[3], columns[4] = partner[columns[0]], partner[columns[1]]
                            # the third column of that box
                            columns[5] = home * 9 + 3 - columns[3] - columns[4]
                            columns[6] = partner[columns[2]]
                            filled = 7
                            away = columns[6] // 3
                            for j in range(3, 6):
                                if partner[columns[j]] // 3 == away:
                                    columns[filled] = partner[columns[j]]
                                    filled += 1
                        for j in range(9):
                            label[grid[first, columns[j]]] = j + 1
                        started = _compare(grid, shown, rows, columns, label, best, mask, started)


@njit
def _compare(grid, shown, rows, columns, label, best, mask, started):
    """Write the grid with these first three rows, columns and labels to `best` if it is smaller; returns True."""
    state = LESS if not started else EQUAL
    state = _put(grid, label, rows, columns, 1, 3, best, state)
    if state == GREATER:
        return True
    # order the rows of the other bands by their first values, and the bands by their first rows
    band = rows[0] // 3
    lower, upper = (band + 1) % 3, (band + 2) % 3
    column = columns[0]
    for k in range(2):
        start = (lower if k == 0 else upper) * 3
        a, b, c = start, start + 1, start + 2
        if label[grid[a, column]] > label[grid[b, column]]:
            a, b = b, a
        if label[grid[b, column]] > label[grid[c, column]]:
            b, c = c, b
        if label[grid[a, column]] > label[grid[b, column]]:
            a, b = b, a
        rows[3 + 3 * k], rows[4 + 3 * k], rows[5 + 3 * k] = a, b, c
    if label[grid[rows[3], column]] > label[grid[rows[6], column]]:
        for k in range(3):
            rows[3 + k], rows[6 + k] = rows[6 + k], rows[3 + k]
    state = _put(grid, label, rows, columns, 3, 9, best, state)
    if state == GREATER:
        return True
    if state == LESS:
        for j in range(9):
            best[j] = j + 1
    _put(shown, SAME, rows, columns, 0, 9, mask, state)
    return True


@njit
def _put(source, label, rows, columns, first, last, best, state):
    """Compare lines `first` to `last` of the relabelled, permuted source with those of `best`, overwriting `best` from
    the first smaller cell on. Returns EQUAL, LESS or GREATER; LESS stays LESS.
    """
    for i in range(first, last):
        for j in range(9):
            value = label[source[rows[i], columns[j]]]
            if state == EQUAL:
                if value > best[i * 9 + j]:
                    return GREATER
                if value == best[i * 9 + j]:
                    continue
                state = LESS
            best[i * 9 + j] = value
    return state
