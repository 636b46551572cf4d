"""Splits: nested, seeded, exact in size, and no class on both sides of a cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.conftest import small
from trm.data.pool import FREE, TEST, TRAIN, Pool, histogram, load_pool, split_order
from trm.data.splits import split
from trm.errors import UserError
from trm.study.dataset_identity import source_identity
from trm.tasks.base import Task
from trm.tasks.build import build_source


def pool_of(classes, part=None, seed=0) -> Pool:
    classes = np.unique(np.asarray(classes), return_inverse=True)[1].astype(np.int32)
    count = len(classes)
    grids = np.zeros((count, 16), dtype=np.uint8)
    part = np.full(count, FREE, dtype=np.uint8) if part is None else np.asarray(part, dtype=np.uint8)
    return Pool(grids, grids, np.zeros(count, dtype=np.int32), classes, split_order(classes, seed), part)


def wanted(train, validation, test):
    return small(train_puzzles=train, validation_puzzles=validation, test_puzzles=test)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=60),
    st.one_of(st.none(), st.integers(1, 20)),
    st.integers(0, 10),
    st.one_of(st.none(), st.integers(1, 20)),
    st.integers(0, 3),
)
def test_no_class_in_two_splits(classes, train, validation, test, seed):
    pool = pool_of(classes, seed=seed)
    try:
        found = split(pool, wanted(train, validation, test), "pool")
    except UserError:
        return
    parts = [found.train, found.validation, found.test]
    used = sum(map(len, parts)) + found.left_out
    assert used == pool.puzzles if None in (train, test) else used <= pool.puzzles
    assert len(np.unique(np.concatenate(parts))) == sum(map(len, parts))
    kinds = [set(pool.classes[part].tolist()) for part in parts]
    assert sum(map(len, kinds)) == len(set.union(*kinds))  # none in two
    for part, count in zip(parts, (train, validation, test)):
        assert len(part) == count if count is not None else len(part)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 15), st.integers(1, 15))
def test_training_sets_are_nested_and_the_rest_stays(one, other):
    pool = pool_of(np.arange(60) // 2)
    first, second = (split(pool, wanted(n, 6, 10), "pool") for n in sorted((one, other)))
    assert (second.train[: len(first.train)] == first.train).all()
    assert (first.validation == second.validation).all()
    assert (first.test == second.test).all()


def test_large_classes_are_no_likelier_to_be_trained_on():
    classes = np.concatenate([np.zeros(500, dtype=int), np.arange(1, 501)])
    first = [pool_of(classes, seed=seed).order[0] < 500 for seed in range(200)]
    assert sum(first) < 10


def test_a_sources_own_division_is_kept():
    part = [TRAIN] * 30 + [TEST] * 10
    classes = [*range(30), 0, 1, 2, *range(40, 47)]
    pool = pool_of(classes, part)
    found = split(pool, wanted(20, 5, None), "pool")
    assert sorted(found.test.tolist()) == list(range(30, 40))
    assert not {0, 1, 2} & set(found.train.tolist() + found.validation.tolist())
    assert found.left_out == 3
    assert len(split(pool, wanted(20, 5, 4), "pool").test) == 4
    with pytest.raises(UserError, match="10 puzzles left for data.test"):
        split(pool, wanted(1, 1, 11), "pool")


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((31, 0, None), "30 puzzles left for data.train_puzzles, at least 31"),
        ((30, 0, None), "0 puzzles left for data.test_puzzles, at least 1"),
        ((None, 0, 30), "0 puzzles left for data.train_puzzles, at least 1"),
        ((10, 31, 1), "data.validation_puzzles"),
        ((10, 5, 30), "25 puzzles left for data.test_puzzles"),
        ((20, 5, 10), "15 puzzles left for data.train_puzzles"),
        ((None, 5, None), "both null"),
    ],
)
def test_too_small_a_pool(numbers, words):
    with pytest.raises(UserError, match=words):
        split(pool_of(np.arange(30)), wanted(*numbers), "results/sources/a")


def test_histogram():
    found = histogram(np.array([0, 0, 1, 2, 3, 4, 9, -1]))
    assert found["counts"] == {"0": 2, "1": 1, "2-3": 2, "4-7": 1, "8-15": 1}
    assert found["known"] == 7
    assert sum(histogram(np.array([16, 16, 31]))["counts"].values()) == 3
    assert histogram(np.array([-1]))["known"] == 0


class Families(Task):
    """Generated puzzles of which each three in a row are one class; there are `most`."""

    name = "sudoku"

    def __init__(self, most):
        self.most, self.asked = most, []

    def pool(self, config, files):
        self.asked.append(config.pool)
        return pool_of(np.arange(min(config.pool, self.most)) // 3)

    def lines(self, tokens, meta):
        return []


@pytest.mark.parametrize(
    ("most", "given", "asked", "filled"),
    [(1000, 0, [24, 30], True), (25, 0, [24, 30, 38], False), (1000, 24, [24], False)],
)
def test_a_pool_of_as_many_as_the_splits_need_grows_until_they_are_full(
    monkeypatch, tmp_path, most, given, asked, filled
):
    """Every cut through a class leaves puzzles out, so that the sum of the splits is too few. A pool that cannot grow,
    or whose size is given, stays as it is."""
    config = small(box_cols=3, train_puzzles=10, validation_puzzles=4, test_puzzles=10, pool=given)
    families = Families(most)
    monkeypatch.setattr("trm.tasks.build.task_of", lambda name: families)
    build_source(config, tmp_path / "pool")
    assert families.asked == asked
    pool, manifest = load_pool(tmp_path / "pool")
    assert manifest["identity"] == source_identity(config)  # the name stays
    if filled:
        assert len(split(pool, config, "pool").train) == 10
    else:
        with pytest.raises(UserError, match="puzzles left for data.train_puzzles"):
            split(pool, config, "pool")
