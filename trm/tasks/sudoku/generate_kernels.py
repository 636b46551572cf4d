"""Compiled Sudoku generation: random grids, removal of clues while the solution stays unique.

Every puzzle is a pure function of a key and its number, so ranges can be generated in any order.
"""

import numpy as np

from trm.compiled import njit
from trm.data.rng_kernels import bounded, child_key, shuffle
from trm.tasks.sudoku.kernels import search, start, value_of, workspace

_1 = np.uint64(1)


@njit
def is_forced(question, cell, value, stack, queue, cells, left, units, peers, solution):
    """Whether the puzzle, without a clue at `cell`, has only solutions with `value` there."""
    full = (1 << units.shape[1]) - 1
    filled = start(question, stack[0], queue, full)
    mask = full ^ (1 << (value - 1))
    stack[0, cell] = mask
    if mask & (mask - 1) == 0:
        queue[filled] = cell
        filled += 1
    left[0] = 0
    return search(stack, queue, filled, cells, left, units, peers, 1, np.uint64(0), solution)[0] == 0


@njit
def dig(question, answer, order, target, work, units, peers):
    """Remove clues in the given order while the solution stays unique and more than `target` remain; returns their
    number."""
    stack, queue, cells, left, solution = work
    clues = 0
    for cell in range(len(question)):
        clues += question[cell] > 0
    for j in range(len(order)):
        if clues <= target:
            break
        cell = order[j]
        if question[cell]:
            question[cell] = 0
            if is_forced(question, cell, answer[cell], stack, queue, cells, left, units, peers, solution):
                clues -= 1
            else:
                question[cell] = answer[cell]
    return clues


@njit
def random_grid(key, work, units, peers, answer):
    """A random solution grid by depth-first search with random values."""
    stack, queue, cells, left, solution = work
    stack[0] = (1 << units.shape[1]) - 1
    left[0] = 0
    search(stack, queue, 0, cells, left, units, peers, 1, key | _1, solution)
    for cell in range(len(answer)):
        answer[cell] = value_of(solution[cell])


@njit
def generate_batch(root, first, clues_min, clues_max, units, peers, questions, answers, clues):
    """Random puzzles first, first+1, ..., each a pure function of (root, its number). clues_max 0: minimal puzzles.
    clues[i] is above clues_max if the random order of the grid's cells allowed no fewer clues."""
    cells = questions.shape[1]
    work = workspace(cells)
    order = np.empty(cells, np.int64)
    for row in range(len(questions)):
        key = child_key(root, first + row)
        random_grid(key, work, units, peers, answers[row])
        questions[row] = answers[row]
        for cell in range(cells):
            order[cell] = cell
        own = child_key(key, 1)
        position = shuffle(order, own, 0)
        target = 0
        if clues_max:
            target = clues_min + bounded(own, position, clues_max - clues_min + 1)
        clues[row] = dig(questions[row], answers[row], order, target, work, units, peers)
