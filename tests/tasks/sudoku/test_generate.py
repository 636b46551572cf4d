"""Generated pools: what was asked for, the same for the same seed, prefixes of one another."""

import numpy as np
import pytest

from tests.data.conftest import small
from trm.errors import UserError
from trm.study.schema import DataConfig
from trm.tasks.build import build_source
from trm.tasks.sudoku.classes import class_keys
from trm.tasks.sudoku.geometry import Geometry
from trm.tasks.sudoku.pool import generated_pool, solve


def test_another_seed_gives_other_members_in_another_order():
    first, second = (generated_pool(small(seed=seed, pool=50)) for seed in (0, 1))
    assert (first.questions != second.questions).any()
    assert (generated_pool(small(pool=50)).questions == first.questions).all()


def test_puzzles_are_minimal_unless_clues_are_asked_for():
    geometry = Geometry(2, 3)
    pool = generated_pool(DataConfig(source="generate", box_rows=2, pool=30))
    questions = pool.questions - 1
    for question in questions:
        shown = np.flatnonzero(question)
        fewer = np.repeat(question[None], len(shown), axis=0)
        fewer[np.arange(len(shown)), shown] = 0
        assert (solve(geometry, fewer)[1] == 2).all()
    pool = generated_pool(DataConfig(source="generate", box_rows=2, pool=30, clues_min=14, clues_max=16))
    clues = (pool.questions > 1).sum(axis=1)
    assert clues.min() >= 14
    assert clues.max() <= 16
    keys = class_keys(geometry, pool.questions - 1, pool.answers - 1)[0]
    assert len(np.unique(keys, axis=0)) == 30


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pool": 3000}, "only 2236 classes"),
        ({"box_cols": 3, "clues_min": 4, "clues_max": 5, "pool": 10}, "random 6x6 puzzles had 4-5 clues"),
    ],
)
def test_what_cannot_be_had_is_said(tmp_path, changes, words):
    with pytest.raises(UserError, match=words):
        build_source(small(**changes), tmp_path / "out")
    assert not list(tmp_path.iterdir())
