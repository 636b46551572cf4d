"""Compiled Sudoku generation: random grids, removal of clues while the solution stays unique, search for hard puzzles.

Every puzzle is a pure function of a key and its number, so ranges can be generated in any order.
"""

from __future__ import annotations

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


@njit
def climb_batch(root, first, min_rating, restarts, steps, add, units, peers, questions, answers, ratings):
    """Minimal puzzles first, first+1, ... rated `min_rating` or more, each a pure function of (root, its number).

    Hill climbing from a random minimal puzzle: add `add` random clues, remove others in random order, and keep the
    result if its rating is not lower, until it reaches `min_rating`. After `steps` attempts a new grid is drawn, up to
    `restarts` times; ratings[i] may stay below `min_rating`.
    """
    cells = questions.shape[1]
    work = workspace(cells)
    stack, queue, branch, left, solution = work
    full = (1 << units.shape[1]) - 1
    order = np.empty(cells, np.int64)
    shown = np.empty(cells, np.int64)
    trial = np.empty(cells, np.uint8)
    for row in range(len(questions)):
        for attempt in range(restarts):
            key = child_key(child_key(root, first + row), attempt)
            random_grid(key, work, units, peers, answers[row])
            best = -1
            for step in range(steps):
                own = child_key(key, 2 + step)
                for cell in range(cells):
                    order[cell] = cell
                shuffle(order, own, 0)
                if step == 0:
                    trial[:] = answers[row]
                else:
                    # the added clues come last, so that others are removed first
                    trial[:] = questions[row]
                    front, back = 0, cells
                    for j in range(cells):
                        cell = order[j]
                        if trial[cell] == 0 and cells - back < add:
                            trial[cell] = answers[row, cell]
                            back -= 1
                            shown[back] = cell
                        else:
                            shown[front] = cell
                            front += 1
                    order[:] = shown
                dig(trial, answers[row], order, 0, work, units, peers)
                filled = start(trial, stack[0], queue, full)
                left[0] = 0
                rating = search(stack, queue, filled, branch, left, units, peers, 1, np.uint64(0), solution)[
                    1
                ]
                if rating >= best:
                    best = rating
                    questions[row] = trial
                if best >= min_rating:
                    break
            ratings[row] = best
            if best >= min_rating:
                break
