"""Data sets on disk: the reference's layout, checksums, damage, nothing half-written."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.damage import DAMAGES, damage
from tests.data.conftest import small
from trm.data import files
from trm.data.dataset import ARRAYS, SPLITS, load
from trm.data.pool import load_pool
from trm.errors import UserError
from trm.tasks.build import build_dataset, build_source

REFERENCE = {"pad_id": 0, "ignore_label_id": 0, "blank_identifier_id": 0, "num_puzzle_identifiers": 1}
REFERENCE |= {"sets": ["all"]}
"""Of every dataset.json."""


def test_layout_is_the_references(set_4x4):
    for split, count in (("train", 40), ("validation", 20), ("test", 100)):
        arrays = {name: np.load(set_4x4 / split / f"all__{name}.npy") for name in ARRAYS}
        assert arrays["inputs"].shape == arrays["labels"].shape == (count, 16)
        assert [arrays[name].dtype for name in ARRAYS] == [np.uint8] * 2 + [np.int32] * (len(ARRAYS) - 2)
        for name in ("puzzle_indices", "group_indices"):
            assert arrays[name].tolist() == list(range(count + 1))
        assert not arrays["puzzle_identifiers"].any()
        sizes = {"total_groups": count, "mean_puzzle_examples": 1.0, "total_puzzles": count}
        found = json.loads((set_4x4 / split / "dataset.json").read_text())
        assert found == REFERENCE | {"vocab_size": 6, "seq_len": 16} | sizes
    assert json.loads((set_4x4 / "identifiers.json").read_text()) == ["<blank>"]


def test_ratings_stay_with_their_puzzles(set_4x4, pool_4x4):
    pool, _ = load_pool(pool_4x4)
    rating = {question.tobytes(): rating for question, rating in zip(pool.questions, pool.ratings)}
    for split in SPLITS:
        puzzles = load(set_4x4, split)
        assert puzzles.ratings.tolist() == [rating[question.tobytes()] for question in puzzles.inputs]
    test = load(set_4x4, "test")
    fewer = test.first(7)
    assert (fewer.groups, fewer.puzzles, len(fewer.ratings)) == (7, 7, 7)
    assert (fewer.inputs == test.inputs[:7]).all()
    assert test.first(1000).groups == 100


def test_equal_builds_give_equal_bytes(tmp_path, pool_4x4, set_4x4):
    build_source(small(), tmp_path / "source")
    build_dataset(small(), tmp_path / "source", tmp_path / set_4x4.name)
    pairs = (("source/puzzles.npz", pool_4x4), (f"{set_4x4.name}/manifest.json", set_4x4))
    for name, other in pairs:
        assert (tmp_path / name).read_bytes() == (other / Path(name).name).read_bytes()


@pytest.fixture
def copy(tmp_path, set_4x4) -> Path:
    """A copy of the data set that a test may change."""
    return shutil.copytree(set_4x4, tmp_path / "copy")


def test_a_data_set_of_other_tools_loads_as_it_is(tmp_path, copy, mazes):
    """Groups of a puzzle and an augmentation, inputs of another integer type, neither manifest nor ratings."""
    shutil.rmtree(copy / "validation")
    for name in ("manifest.json", "train/all__ratings.npy"):
        (copy / name).unlink()
    inputs = copy / "train/all__inputs.npy"
    np.save(inputs, np.load(inputs).astype(np.int64))
    np.save(copy / "train/all__group_indices.npy", np.arange(0, 41, 2, dtype=np.int32))
    train = load(copy, "train")
    assert (train.groups, train.puzzles, train.inputs.dtype) == (20, 40, np.uint8)
    assert (train.meta.task, train.meta.augmentations) == ("sudoku", 0)
    with pytest.raises(UserError, match="no validation split, only train, test"):
        load(copy, "validation")
    other = shutil.copytree(mazes, tmp_path / "mazes", ignore=shutil.ignore_patterns("manifest.json"))
    assert load(other, "train").meta.task == "maze"


@pytest.mark.parametrize(
    "name", ["train/all__inputs.npy", "train/dataset.json", "train/all__group_indices.npy"]
)
@pytest.mark.parametrize("how", DAMAGES)
def test_damage_is_refused_by_name(copy, name, how):
    damage(copy / name, how)
    with pytest.raises(UserError, match=name):
        load(copy, "train")
    load(copy, "test")  # the others still can be read


def test_a_damaged_pool_and_one_of_another_seed_are_refused(tmp_path, pool_4x4):
    folder = shutil.copytree(pool_4x4, tmp_path / "pool")
    damage(folder / "puzzles.npz", "flipped")
    another = "was built with seed 0, but the configuration has 1: build the source again"
    for config, source, words in (
        (small(), folder, r"puzzles\.npz was changed or damaged"),
        (small(seed=1), pool_4x4, another),
    ):
        with pytest.raises(UserError, match=words):
            build_dataset(config, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("group_indices", np.array([0, 41], dtype=np.int32), "must increase from 0 to 40"),
        ("puzzle_indices", np.arange(41)[::-1], "must increase from 0 to 40"),
        ("inputs", np.full((40, 16), 6), "holds 6, above 5"),
        ("inputs", np.full((40, 16), -1), r"holds values outside 0\.\.255"),
        ("inputs", np.full((40, 16), 1.5), "not integers"),
        ("inputs", np.full(40, 1), "has 1 dimensions"),
        ("inputs", np.full((40, 15), 1), "do not fit seq_len 16"),
        ("puzzle_identifiers", np.zeros(3, dtype=np.int32), "has 3 entries"),
        ("labels", "no array", "not a readable NumPy array"),
        ("dataset.json", "{}", "no whole number `seq_len`"),
        ("dataset.json", "{", "is not JSON"),
    ],
)
def test_inconsistent_data_sets_of_other_tools(copy, name, content, words):
    (copy / "manifest.json").unlink()
    path = copy / "train" / (name if name.endswith("json") else f"all__{name}.npy")
    path.write_text(content) if isinstance(content, str) else np.save(path, content)
    with pytest.raises(UserError, match=words):
        load(copy, "train")


def test_manifests_of_other_kinds(tmp_path, copy, pool_4x4, set_4x4):
    pool = json.loads((pool_4x4 / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(pool | {"format": 2}))
    for read, folder, words in (
        (lambda folder: load(folder, "train"), copy, "not a dataset manifest"),
        (lambda folder: load(folder, "train"), tmp_path / "none", "is not a data set"),
        (load_pool, set_4x4, "not a source manifest"),
        (load_pool, copy, "format 2"),
    ):
        with pytest.raises(UserError, match=words):
            read(folder)


def test_a_write_that_fails_leaves_nothing_that_passes_for_done(tmp_path, pool_4x4, monkeypatch):
    target = tmp_path / "set"
    target.write_text("in the way")
    with pytest.raises(UserError, match="set: "):
        build_dataset(small(), pool_4x4, target)
    assert target.read_text() == "in the way"
    target.unlink()
    build_dataset(small(), pool_4x4, target)

    def full(*_, **__):
        raise OSError(28, "No space left on device", str(target))

    for place, name, manifest in ((files.tempfile, "mkdtemp", True), (files, "_replace", False)):
        monkeypatch.setattr(place, name, full)
        with pytest.raises(UserError, match="set: No space left on device; free space"):
            build_dataset(small(train_puzzles=10), pool_4x4, target)
        monkeypatch.undo()
        assert (target / "manifest.json").exists() == manifest
        assert [path.name for path in tmp_path.iterdir()] == ["set"]  # no temporary folder stays


def test_what_a_killed_process_left_is_removed(tmp_path, pool_4x4, monkeypatch):
    (tmp_path / ".set.abc").mkdir()
    build_dataset(small(), pool_4x4, tmp_path / "set")
    assert (tmp_path / ".set.abc").exists()  # it may still be at work
    monkeypatch.setattr(files, "STALE", -1.0)
    build_dataset(small(), pool_4x4, tmp_path / "set")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
