"""Extra clues: cells of the question filled in from the answer, as a pure function of (seed, step, row)."""

import numpy as np

from tests.data.conftest import small
from trm.data import hints
from trm.data.dataset import load
from trm.tasks.build import build_dataset


def rows(count=64, cells=36, blanks=24):
    """Questions with `blanks` blank cells each, and their answers."""
    rng = np.random.default_rng(0)
    answers = rng.integers(2, 8, (count, cells)).astype(np.uint8)
    blank = rng.permuted(np.tile(np.arange(cells) < blanks, (count, 1)), axis=1)
    return np.where(blank, hints.BLANK, answers).astype(np.uint8), answers


def test_hints_are_cells_of_the_answer_and_their_number_is_in_the_range():
    questions, answers = rows()
    keys = hints.keys_of_step(0, 5, 64, 0, 64)
    found = hints.give(questions, answers, keys, (3, 9))
    added = (found != questions).sum(axis=1)
    assert set(added.tolist()) == set(range(3, 10))
    assert ((found == answers) | (found == hints.BLANK)).all()
    assert (found[questions != hints.BLANK] == questions[questions != hints.BLANK]).all()
    everything = hints.give(questions, answers, keys, (30, 40))  # more than there are blank cells
    assert (everything == answers).all()
    assert (hints.give(questions, answers, keys, (0, 0)) == questions).all()


def test_every_blank_cell_is_as_likely():
    questions, answers = rows(count=1, cells=12, blanks=6)
    keys = hints.keys_of_step(3, 0, 6000, 0, 6000)
    questions, answers = np.tile(questions, (6000, 1)), np.tile(answers, (6000, 1))
    counts = (hints.give(questions, answers, keys, (2, 2)) != questions).sum(axis=0)
    shares = counts[counts > 0] / 6000
    assert len(shares) == 6
    # 2 of 6 cells; standard error sqrt(1/3 * 2/3 / 6000) = 0.006
    assert abs(shares - 1 / 3).max() < 5 * 0.0061


def test_hints_depend_on_seed_step_and_row_and_not_on_the_workers():
    whole = hints.keys_of_step(0, 7, 32, 0, 32)
    parts = [hints.keys_of_step(0, 7, 32, 8 * rank, 8) for rank in range(4)]
    assert (np.concatenate(parts) == whole).all()
    for other in (hints.keys_of_step(1, 7, 32, 0, 32), hints.keys_of_step(0, 8, 32, 0, 32)):
        assert not (other == whole).any()


def test_held_out_puzzles_get_their_hints_once(tmp_path, pool_4x4, set_4x4):
    config = small(held_out_hints=(2, 3))
    build_dataset(config, pool_4x4, tmp_path / "set")
    again = load(tmp_path / "set", "test"), load(set_4x4, "test")
    assert set((again[0].inputs != again[1].inputs).sum(axis=1).tolist()) == {2, 3}
    assert (again[0].labels == again[1].labels).all()
    assert (load(tmp_path / "set", "train").inputs == load(set_4x4, "train").inputs).all()
    fewer = small(held_out_hints=(2, 3), test_puzzles=30)
    build_dataset(fewer, pool_4x4, tmp_path / "fewer")
    assert (load(tmp_path / "fewer", "test").inputs == again[0].inputs[:30]).all()
