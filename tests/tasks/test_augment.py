"""Augmentation: valid, exact, pure, and the same in NumPy and PyTorch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trm.data import rng
from trm.data.dataset import Meta, load
from trm.model.act import Rows
from trm.tasks import task_of
from trm.tasks.base import moved
from trm.tasks.maze.maze import examine
from trm.tasks.sudoku.geometry import Geometry, broken_rule, sudoku_maps
from trm.tasks.sudoku.kernels import solve_batch
from trm.tasks.sudoku.pool import solve
from trm.tasks.sudoku.task import SudokuAugmenter
from trm.training.step import Batch, transformed

SHAPES = st.sampled_from([(2, 2), (2, 3), (3, 2), (3, 3), (2, 4), (4, 4), (3, 5)])


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.integers(0, 2**63))
def test_a_map_is_a_symmetry_of_the_rules(shape, key):
    geometry = Geometry(*shape)
    tokens, cells = sudoku_maps(geometry, rng.key(key, np.arange(8)))
    assert (np.sort(tokens, axis=1) == np.arange(geometry.side + 2)).all()
    assert (tokens[:, :2] == [0, 1]).all()  # padding and blank stay
    assert (np.sort(cells, axis=1) == np.arange(geometry.cells)).all()
    units = {tuple(sorted(unit)) for unit in geometry.units.tolist()}
    for row in cells:
        assert {tuple(sorted(row[unit].tolist())) for unit in geometry.units} == units


def test_all_symmetries_of_4x4_occur_equally_often():
    tokens, cells = sudoku_maps(Geometry(2, 2), rng.key(1, np.arange(30_000)))
    assert {row.tobytes() for row in cells} == {
        row.astype(np.int16).tobytes() for row in Geometry(2, 2).cell_symmetries
    }
    counts = np.unique(cells, axis=0, return_counts=True)[1]
    assert abs(counts - 30_000 / 128).max() < 5.5 * np.sqrt(30_000 / 128)
    assert len(np.unique(tokens, axis=0)) == 24


def test_copies_are_pure_and_the_first_is_the_original(set_4x4):
    train = load(set_4x4, "train")
    augmenter = task_of(train.meta.task).augmenter(train)
    puzzles, copies = np.repeat(np.arange(40), 4), np.tile(np.arange(4), 40)
    tokens, cells = augmenter.maps(puzzles, copies)
    assert (tokens[copies == 0] == np.arange(6)).all()
    assert (cells[copies == 0] == np.arange(16)).all()
    order = rng.shuffled(5, 160)
    again = task_of(train.meta.task).augmenter(train).maps(puzzles[order], copies[order])
    assert all((one == other[order]).all() for one, other in zip(again, (tokens, cells)))
    questions, answers = (moved(grids[puzzles], (tokens, cells)) for grids in (train.inputs, train.labels))
    assert not broken_rule(Geometry(2, 2), answers - 1).any()
    solved, solutions, _ = solve(Geometry(2, 2), questions - 1)
    assert (solutions == 1).all()
    assert (solved == answers - 1).all()
    other = SudokuAugmenter(Meta("sudoku", 16, 6, 1, augmentations=3, seed=1, box_rows=2, box_cols=2))
    assert (other.maps(puzzles, copies)[1] != cells).any()


@pytest.mark.parametrize("kind", ["sudoku", "maze"])
def test_torch_and_numpy_agree(set_4x4, mazes, kind):
    train = load(set_4x4 if kind == "sudoku" else mazes, "train")
    copies = train.meta.augmentations + 1
    puzzles, copy = np.divmod(np.arange(train.puzzles * copies), copies)
    maps = task_of(train.meta.task).augmenter(train).maps(puzzles, copy)
    nothing = np.zeros(len(puzzles), dtype=np.int32)
    originals = Rows(*map(torch.from_numpy, (train.inputs, train.labels, nothing[: train.puzzles])))
    rows = transformed(originals, Batch(*map(torch.from_numpy, (puzzles, *maps, nothing))))
    for ours, grids in ((rows.inputs, train.inputs), (rows.labels, train.labels)):
        assert (ours.numpy() == moved(grids[puzzles], maps)).all()


def test_mazes_have_eight_forms(mazes):
    train = load(mazes, "train")
    maps = task_of(train.meta.task).augmenter(train).maps(np.zeros(8, dtype=int), np.arange(8))
    assert len({row.tobytes() for row in maps[1]}) == 8
    questions, answers = (moved(grids[[0] * 8], maps) for grids in (train.inputs, train.labels))
    faults, lengths, _ = examine(8, questions, answers)
    assert not faults.any()
    assert len(set(lengths.tolist())) == 1


def test_compiled_code_releases_the_lock():
    assert solve_batch.targetoptions["nogil"]
