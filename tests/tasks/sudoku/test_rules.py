"""Solver, rating, classes and canonical forms."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trm.data import rng
from trm.tasks.grids import number_rows
from trm.tasks.sudoku.canonical import canonical_keys
from trm.tasks.sudoku.classes import FOUR, class_keys, classes_4x4, pairs
from trm.tasks.sudoku.generate_kernels import generate_batch
from trm.tasks.sudoku.geometry import Geometry, broken_rule, from_text, sudoku_maps, to_text
from trm.tasks.sudoku.pool import rate, solve

NINE = Geometry(3, 3)
HARD = "98.7.....6.....7....7....85.4..3...2..64..5.......1.4...89..6......4..3......2..1"
ANSWER = "984725163652318794137694285841536972326479518579281346418953627265147839793862451"


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (2, 3), (3, 2), (3, 3), (2, 4), (3, 4)])
def test_units_and_peers(rows, columns):
    geometry = Geometry(rows, columns)
    n = rows * columns
    assert geometry.units.shape == (3 * n, n)
    assert (np.sort(geometry.units.reshape(3, -1), axis=1) == np.arange(n * n)).all()
    assert geometry.peers.shape == (n * n, 3 * n - rows - columns - 1)
    box = geometry.units[2 * n]
    assert set((box // n).tolist()) == set(range(rows))
    assert set((box % n).tolist()) == set(range(columns))


def test_text_form():
    grid = from_text(HARD)
    assert to_text(grid) == HARD
    assert to_text(np.array([0, 1, 9, 10, 25], dtype=np.uint8)) == ".19AP"


def test_rating_is_the_guesses_of_the_stated_solver():
    question = from_text(HARD)[None]
    answers, solutions, ratings = solve(NINE, question)
    assert to_text(answers[0]) == ANSWER
    assert solutions.tolist() == [1]
    assert ratings.tolist() == [101]  # the rating this puzzle has in the public collection
    assert rate(NINE, from_text(ANSWER)[None]).tolist() == [0]


def test_several_and_no_solutions():
    question = from_text(HARD)
    fewer = question.copy()
    fewer[0] = 0
    clash = question.copy()
    clash[8] = 9
    _, solutions, _ = solve(NINE, np.stack([fewer, clash, np.zeros(81, dtype=np.uint8)]))
    assert solutions.tolist() == [2, 0, 2]


def test_every_class_of_4x4():
    questions, answers = classes_4x4(4, 8)
    assert len(questions) == 2236
    assert len(classes_4x4(0, 0)[0]) == 36
    assert len(np.unique(class_keys(FOUR, questions, answers)[0], axis=0)) == 2236
    solved, solutions, _ = solve(FOUR, questions)
    assert (solutions == 1).all()
    assert (solved == answers).all()
    assert not broken_rule(FOUR, answers).any()


def random_puzzles(geometry, key, count, least, most):
    """Questions and answers."""
    questions = np.empty((count, geometry.cells), dtype=np.uint8)
    answers, clues = np.empty_like(questions), np.empty(count, dtype=np.int64)
    made = questions, answers, clues
    generate_batch(np.uint64(key), 0, least, most, geometry.units, geometry.peers, *made)
    return questions, answers


def least_grid(question, answer):
    """The canonical solution grid, read from the key: four words of 18 base-9 digits below the first row 1 to 9."""
    words = canonical_keys(question[None], answer[None])[0, :4]
    digits = [int(word) // 9**place % 9 + 1 for word in words for place in reversed(range(18))]
    return bytes([*range(1, 10), *digits])


def test_the_9x9_form_is_the_least_of_an_exhaustive_search():
    """Brute force over all row, column and transposed orders, digits renamed: 2 x 1296 x 1296 grids."""
    answer = from_text(ANSWER).reshape(9, 9)
    triples = list(itertools.permutations(range(3)))
    lines = np.array(
        [[3 * b + i for b, inner in zip(blocks, choice) for i in inner]
         for blocks in triples for choice in itertools.product(triples, repeat=3)]
    )  # fmt: skip
    best = None
    for grid in (answer, answer.T):
        for columns in lines:
            shuffled = grid[:, columns]
            # with the first row fixed, rows sort themselves: only the first row's choice matters
            for first in range(9):
                label = np.empty(10, dtype=np.uint8)
                label[shuffled[first]] = np.arange(1, 10)
                named = label[shuffled]
                bands = [sorted(named[3 * b + i].tobytes() for i in range(3)) for b in range(3)]
                found = b"".join(row for band in sorted(bands) for row in band)
                best = found if best is None or found < best else best
    assert least_grid(from_text(HARD), from_text(ANSWER)) == best


def test_automorphic_grids_tell_clues_apart_only_up_to_symmetry():
    """The most symmetric grid: a clue in any cell is equivalent to one in any other."""
    answer = from_text("123456789456789123789123456231564897564897231897231564312645978645978312978312645")
    questions = np.zeros((81, 81), dtype=np.uint8)
    questions[np.arange(81), np.arange(81)] = answer
    keys = canonical_keys(questions, np.tile(answer, (81, 1)))
    assert len(np.unique(keys, axis=0)) == 1
    assert least_grid(questions[0], answer) == answer.tobytes()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([(2, 2), (2, 3), (3, 2), (3, 3), (2, 4), (3, 4)]))
def test_equivalent_puzzles_share_a_class_at_every_size(key, shape):
    geometry = Geometry(*shape)
    half = geometry.cells // 2
    questions, answers = random_puzzles(geometry, key, 6, half, half)
    tokens, cells = sudoku_maps(geometry, rng.key(key, np.arange(6)))
    moved = [
        np.take_along_axis(tokens[:, 1:] - 1, np.take_along_axis(grids, cells, axis=1), axis=1).astype(
            np.uint8
        )
        for grids in (questions, answers)
    ]
    assert not broken_rule(geometry, moved[1]).any()
    keys = class_keys(geometry, questions, answers)[0]
    assert (keys == class_keys(geometry, *moved)[0]).all()
    if shape != (2, 2):
        assert len(np.unique(keys, axis=0)) == 6  # random puzzles of these sizes are never equivalent


def test_numbers_and_pairs():
    rows = np.array([[5, 1], [2, 2], [5, 1], [0, 0], [5, 1]])
    assert number_rows(rows).tolist() == [0, 1, 0, 2, 0]
    assert pairs(number_rows(rows)) == 3
    assert number_rows(np.empty((0, 3), dtype=np.int64)).tolist() == []
