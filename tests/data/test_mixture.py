"""Several sources in one pool: what is taken from each, and how often a training step draws it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.data.conftest import build
from tests.training.conftest import config, train
from trm.data.dataset import load
from trm.data.pool import load_pool
from trm.data.sampler import MixtureSampler
from trm.errors import UserError
from trm.study.dataset_identity import dataset_identity
from trm.study.fingerprint import run_fingerprint
from trm.study.reading import error_sentence
from trm.study.schema import DataConfig, RunConfig
from trm.study.stages import DrawStage, draw_stages
from trm.tasks.build import build_source
from trm.tasks.sudoku.geometry import to_text

SIX = {"box_rows": 2, "box_cols": 3}
EASY = {"kind": "generate", "pool": 40, "clues": [18, 22]}
HARD = {"kind": "generate", "pool": 30, "share": 3.0}


def mix(*sources, **changes):
    sizes = {"train_puzzles": 40, "validation_puzzles": 8, "test_puzzles": 10, "augmentations": 2}
    return DataConfig.model_validate({"source": "mix", "sources": sources, **SIX, **sizes, **changes})


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A pool of generated puzzles with many clues and with few, and the data set cut from it."""
    return build(mix(EASY, HARD), tmp_path_factory.mktemp("mix")).parent


def test_every_source_keeps_its_range_of_clues(built):
    pool, manifest = load_pool(built / "source")
    clues = (pool.questions > 1).sum(1)
    assert manifest["by_source"] == [40, 30]
    assert set(clues[pool.sources == 0].tolist()) <= set(range(18, 23))
    assert clues[pool.sources == 1].max() < 18
    for split in ("train", "validation", "test"):
        puzzles = load(built / "set", split)
        few = (puzzles.inputs > 1).sum(1) < 18
        assert (puzzles.sources == few).all()


def test_files_are_read_in_their_order_and_filtered(built, tmp_path):
    pool, _ = load_pool(built / "source")
    lines = [f"{to_text(q - 1)},{to_text(a - 1)}" for q, a in zip(pool.questions, pool.answers)]
    clues = (pool.questions > 1).sum(1)
    (tmp_path / "a.csv").write_text("question,answer\n" + "\n".join(lines[:35]) + "\n")
    (tmp_path / "b.csv").write_text("question,answer\n" + "\n".join(lines[30:]) + "\n")
    files = [str(tmp_path / name) for name in ("a.csv", "b.csv")]
    sources = {"kind": "file", "clues": [20, 36]}, {"kind": "file"}, {"kind": "generate", "pool": 5}
    build_source(mix(*sources, files=files), tmp_path / "pool")
    _, manifest = load_pool(tmp_path / "pool")
    kept = int((clues[:35] >= 20).sum())
    repeated = int((clues[30:35] >= 20).sum())  # of equivalent puzzles the first is kept
    assert manifest["by_source"] == [kept, 40 - repeated, 5]
    assert len(manifest["identity"]["sha256"]) == 2
    with pytest.raises(UserError, match=r"data.sources\[0\] has no puzzle of 35-36 clues"):
        build_source(mix({"kind": "file", "clues": [35, 36]}, files=files[:1]), tmp_path / "none")


def sampler(sizes, stages, batch=12, seed=0, copies=1):
    sources = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return MixtureSampler(sources, stages, copies=copies, batch_size=batch, seed=seed), sources


STAGES = [DrawStage(7, (0, 0), (0.75, 0.25, 0.0)), DrawStage(20, (0, 0), (0.1, 0.3, 0.6))]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 19), st.integers(-3, 3))
def test_workers_share_the_batch_of_one_worker(step, seed):
    found, _ = sampler([5, 9, 30], STAGES, seed=seed, copies=3)
    whole = found.batch(step)
    again, _ = sampler([5, 9, 30], STAGES, seed=seed, copies=3)
    for world in (1, 2, 4):
        parts = [again.batch(step, rank, world) for rank in range(world)]
        for field in range(3):
            assert (np.concatenate([part[field] for part in parts]) == whole[field]).all()


def test_rows_follow_the_shares_of_each_stage():
    found, sources = sampler([5, 9, 30], STAGES)
    counts = np.array([np.bincount(sources[found.batch(step).rows], minlength=3) for step in range(20)])
    assert (counts.sum(1) == 12).all()
    assert (abs(counts[:7].sum(0) - 84 * np.array([0.75, 0.25, 0])) < 1).all()
    assert (abs(counts[7:].sum(0) - 156 * np.array([0.1, 0.3, 0.6])) < 3).all()
    assert not counts[:7, 2].any()


def test_an_epoch_of_a_source_visits_each_of_its_puzzles_once():
    found, sources = sampler([5, 9, 30], STAGES)
    rows = np.concatenate([found.batch(step).rows for step in range(20)])
    for number, size in enumerate((5, 9, 30)):
        own = rows[sources[rows] == number]
        for first in range(0, len(own) - size + 1, size):
            # a step's rows are shuffled, so an epoch may borrow from the step that it ends in
            assert len(set(own[first : first + size])) >= size - 12
        assert np.bincount(own, minlength=44)[sources == number].min() >= len(own) // size - 1


def run(**data):
    base = {"source": "mix", "sources": [EASY, HARD], **SIX}
    return RunConfig.model_validate({"data": base | data})


def test_shares_belong_to_the_run_and_not_to_the_data_set():
    stage = {"until": 0.5, "shares": [1, 0]}
    other = [EASY, HARD | {"share": 1.0}]
    variants = [{}, {"sources": other}, {"curriculum": [stage]}]
    assert len({run_fingerprint(run(**v)) for v in variants}) == 3
    assert len({str(dataset_identity(run(**v).data)) for v in variants}) == 1
    assert draw_stages(run(curriculum=[stage]).data, 10) == [
        (5, (0, 0), (1.0, 0.0)),
        (10, (0, 0), (0.25, 0.75)),
    ]
    fewer = run(sources=[EASY | {"clues": [19, 22]}, HARD])
    assert dataset_identity(fewer.data) != dataset_identity(run().data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"sources": []}, "data.source=mix needs data.sources"),
        ({"source": "generate"}, "data.sources needs data.source=mix"),
        ({"sources": [{"kind": "file"}, EASY]}, "1 of kind file, but data.files has 0"),
        ({"sources": [{"kind": "generate"}]}, "needs a pool above 0"),
        ({"curriculum": [{"until": 0.5, "shares": [1]}]}, "one share for each of the 2 data.sources"),
        ({"curriculum": [{"until": 0.5, "shares": [0, 0]}]}, "the shares are all 0"),
        ({"sources": [EASY | {"clues": [9, 3]}]}, "data.sources.0.clues: must be two whole numbers"),
        ({"sources": [{"kind": "csv"}]}, "data.sources.0.kind: must be 'file' or 'generate', not 'csv'"),
    ],
)
def test_bad_values_are_refused_in_a_sentence(data, words):
    with pytest.raises(ValidationError) as caught:
        run(**data)
    assert words in error_sentence(caught.value, RunConfig)


def test_training_draws_by_shares(built, tmp_path):
    stages = [{"until": 0.5, "shares": [0, 1]}, {"until": 0.75, "shares": [1, 0]}]
    data = mix(EASY, HARD, curriculum=stages, hints=(0, 2)).model_dump()
    done = train(config({"puzzle_tokens": 0}, data=data), built / "set", tmp_path)
    sources = load(built / "set", "train").sources
    seen = [sources[done.feed.batch(step).original.numpy()].tolist() for step in (1, 6, 7, 9)]
    assert seen == [[1] * 16, [1] * 16, [0] * 16, [0] * 16]
    assert 0 < sum(sources[done.feed.batch(10).original.numpy()]) < 16
