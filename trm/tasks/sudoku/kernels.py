"""Compiled Sudoku: depth-first solver and rating, canonical forms of small grids.

Candidates are bit masks (bit v-1: value v), int32 [cells]; a stack has one such array per level. `units` and `peers`
are those of `Geometry`. All numbers are integers, so results are the same on every machine.
"""

import numpy as np

from trm.compiled import njit
from trm.data.rng_kernels import bounded


@njit
def propagate(cand, queue, filled, units, peers, full):
    """Propagate naked and hidden singles to a fixed point. queue[:filled] are cells with one candidate that is not yet
    propagated. Returns False on a contradiction."""
    side = units.shape[1]
    while True:
        while filled:
            filled -= 1
            cell = queue[filled]
            bit = cand[cell]
            for j in range(peers.shape[1]):
                peer = peers[cell, j]
                mask = cand[peer]
                if mask & bit:
                    mask ^= bit
                    if mask == 0:
                        return False
                    cand[peer] = mask
                    if mask & (mask - 1) == 0:
                        queue[filled] = peer
                        filled += 1
        for unit in range(units.shape[0]):
            once = 0
            twice = 0
            fixed = 0
            for j in range(side):
                mask = cand[units[unit, j]]
                twice |= once & mask
                once |= mask
                if mask & (mask - 1) == 0:
                    fixed |= mask
            if once != full:
                return False
            hidden = once & ~twice & ~fixed
            if hidden:
                for j in range(side):
                    cell = units[unit, j]
                    bit = cand[cell] & hidden
                    if bit:
                        if bit & (bit - 1):
                            return False  # two values have only this cell
                        cand[cell] = bit
                        queue[filled] = cell
                        filled += 1
                break
        if filled == 0:
            return True


@njit
def start(question, cand, queue, full):
    """Initialise candidates from the clues; returns the number of queued cells."""
    filled = 0
    for cell in range(len(question)):
        if question[cell]:
            cand[cell] = 1 << (question[cell] - 1)
            queue[filled] = cell
            filled += 1
        else:
            cand[cell] = full
    return filled


@njit
def fewest(cand, side):
    """The first cell with the fewest candidates above one, or -1 if all are decided."""
    best, chosen = side + 1, -1
    for cell in range(len(cand)):
        mask = cand[cell]
        if mask & (mask - 1):
            count = 0
            while mask and count < best:
                mask &= mask - 1
                count += 1
            if count < best:
                best, chosen = count, cell
                if best == 2:
                    break
    return chosen


@njit
def search(stack, queue, filled, cells, left, units, peers, limit, key, solution):
    """Depth-first search from stack[0], values in ascending (key 0) or random order.

    Returns:
        (solutions found up to `limit`, guesses until the first one); the first solution's bits go to `solution`.
    """
    side = units.shape[1]
    full = (1 << side) - 1
    solutions = 0
    guesses = 0
    rating = 0
    depth = 0
    draws = 0
    alive = propagate(stack[0], queue, filled, units, peers, full)
    while True:
        if alive:
            cell = fewest(stack[depth], side)
            if cell < 0:
                if solutions == 0:
                    solution[:] = stack[depth]
                    rating = guesses
                solutions += 1
                if solutions >= limit:
                    return solutions, rating if solutions else guesses
                depth -= 1
            else:
                cells[depth] = cell
                left[depth] = stack[depth, cell]
        else:
            depth -= 1
        while depth >= 0 and left[depth] == 0:
            depth -= 1
        if depth < 0:
            return solutions, rating if solutions else guesses
        mask = left[depth]
        if key:
            count = 0
            rest = mask
            while rest:
                rest &= rest - 1
                count += 1
            skip = bounded(key, draws, count)
            draws += 1
            for _ in range(skip):
                mask &= mask - 1
        bit = mask & -mask
        left[depth] ^= bit
        guesses += 1
        stack[depth + 1] = stack[depth]
        depth += 1
        stack[depth, cells[depth - 1]] = bit
        queue[0] = cells[depth - 1]
        left[depth] = 0
        alive = propagate(stack[depth], queue, 1, units, peers, full)


@njit
def value_of(bit):
    """The value whose bit this is."""
    value = 0
    while bit:
        bit >>= 1
        value += 1
    return value


@njit
def workspace(cells):
    """Work arrays of `search`: stack, queue, branch cells, values left, solution."""
    return (
        np.empty((cells + 2, cells), np.int32),
        np.empty(cells * 4, np.int32),
        np.zeros(cells + 2, np.int32),
        np.zeros(cells + 2, np.int32),
        np.empty(cells, np.int32),
    )


@njit
def solve_batch(questions, units, peers, limit, answers, solutions, ratings):
    """Solve each question; writes answers (values), solutions (number up to `limit`) and ratings (guesses until
    the first solution)."""
    stack, queue, cells, left, solution = workspace(questions.shape[1])
    full = (1 << units.shape[1]) - 1
    for row in range(len(questions)):
        filled = start(questions[row], stack[0], queue, full)
        left[0] = 0
        count, ratings[row] = search(
            stack, queue, filled, cells, left, units, peers, limit, np.uint64(0), solution
        )
        solutions[row] = count
        for cell in range(questions.shape[1]):
            answers[row, cell] = value_of(solution[cell]) if count else 0


@njit
def canonical_batch(questions, symmetries, out):
    """The smallest equivalent puzzle of each question over all cell symmetries, values renamed by first appearance. The
    pattern of clues is compared first, because few symmetries give the smallest one."""
    cells = questions.shape[1]
    names = np.zeros(64, np.uint8)
    for row in range(len(questions)):
        question = questions[row]
        best = out[row]
        started = False
        for s in range(len(symmetries)):
            moves = symmetries[s]
            order = 0
            if started:
                for j in range(cells):
                    shown = question[moves[j]] > 0
                    if shown != (best[j] > 0):
                        order = 1 if shown else -1
                        break
                if order > 0:
                    continue
            names[:] = 0
            count = 0
            smaller = order < 0 or not started
            for j in range(cells):
                value = question[moves[j]]
                if value:
                    if names[value] == 0:
                        count += 1
                        names[value] = count
                    value = names[value]
                if not smaller:
                    if value > best[j]:
                        break
                    if value < best[j]:
                        smaller = True
                        # equal to the best so far
                if smaller:
                    best[j] = value
            started = True
