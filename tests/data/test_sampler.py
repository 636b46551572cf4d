"""Laws of the sampler: pure, disjoint across workers, epochs that visit every group once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trm.data.dataset import load
from trm.data.sampler import Sampler

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=12)


def sampler_of(group_sizes, examples=1, **settings_):
    """Groups of `group_sizes` puzzles with `examples` examples each."""
    groups = np.concatenate([[0], np.cumsum(group_sizes)])
    return Sampler(np.arange(groups[-1] + 1) * examples, groups, **({"seed": 0} | settings_))


@settings(max_examples=80, deadline=None)
@given(SIZES, st.integers(1, 3), st.integers(1, 5), st.integers(-5, 5), st.integers(0, 50))
def test_workers_share_the_single_workers_batch(groups, examples, copies, seed, step):
    sampler = sampler_of(groups, examples, copies=copies, batch_size=16, seed=seed)
    whole = sampler.batch(step)
    assert len(whole.rows) == 16
    for world in (2, 4, 8):
        parts = [sampler.batch(step, rank, world) for rank in range(world)]
        for field in range(3):
            assert (np.concatenate([part[field] for part in parts]) == whole[field]).all()
        steps = [sampler.batch(step + k, 1, world) for k in range(3)]
        joined = sampler.batches(range(step, step + 3), 1, world)
        assert all((np.concatenate(a) == b).all() for a, b in zip(zip(*steps), joined))
    fresh = sampler_of(groups, examples, copies=copies, batch_size=16, seed=seed)
    assert all((a[:16] == b).all() for a, b in zip(fresh.batches(range(step, step + 2)), whole))  # no replay


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(1, 3), st.integers(1, 9))
def test_every_epoch_visits_every_group_once(groups, examples, batch):
    sampler = sampler_of(groups, examples, copies=3, batch_size=batch)
    epoch = len(groups) * examples
    batches = [sampler.batch(step) for step in range(-(-5 * epoch // batch))]
    rows = np.concatenate([b.rows for b in batches])[: 5 * epoch].reshape(5, epoch)
    puzzles = np.concatenate([b.puzzles for b in batches])[: 5 * epoch].reshape(5, epoch)
    group = np.searchsorted(np.cumsum(groups), puzzles, side="right")
    for k in range(5):
        assert np.bincount(group[k], minlength=len(groups)).tolist() == [examples] * len(groups)
        assert len(np.unique(rows[k])) == epoch  # a visit takes each example of its puzzle once
        visits = group[k].reshape(-1, examples)
        assert (visits == visits[:, :1]).all()
        assert (puzzles[k].reshape(-1, examples) == puzzles[k].reshape(-1, examples)[:, :1]).all()
        assert (rows[k] // examples == puzzles[k]).all()


def test_single_examples_are_drawn_as_several_are():
    single = sampler_of([2, 1, 3], copies=4, batch_size=64, seed=9)
    general = sampler_of([2, 1, 3], copies=4, batch_size=64, seed=9)
    general._single = False
    for step in (0, 1, 17):
        assert all((a == b).all() for a, b in zip(single.batch(step), general.batch(step)))


def test_all_copies_and_seeds_occur():
    sampler = sampler_of([2] * 50, copies=3, batch_size=100, seed=1)
    drawn = [sampler.batch(step) for step in range(20)]
    assert set(np.concatenate([b.copies for b in drawn]).tolist()) == {0, 1, 2}
    assert len(np.unique(np.concatenate([b.puzzles for b in drawn]))) == 100
    assert (sampler_of([2] * 50, batch_size=100, seed=2).batch(0).rows != drawn[0].rows).any()
    counts = np.bincount(np.concatenate([b.copies for b in drawn]))
    assert abs(counts - 2000 / 3).max() < 5 * np.sqrt(2000 * 2 / 9)


def test_bad_arguments(set_4x4):
    train = load(set_4x4, "train")
    for puzzles, batch in ((train.first(0), 4), (train, 0)):
        with pytest.raises(ValueError, match="not empty"):
            Sampler.of(puzzles, batch, 0)
    with pytest.raises(ValueError, match="3 workers"):
        Sampler.of(train, 32, 0).batch(0, 0, 3)
