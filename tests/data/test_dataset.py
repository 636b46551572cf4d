"""Data sets on disk: the reference's layout, checksums, damage, nothing half-written."""

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.damage import DAMAGES, damage
from tests.data.conftest import small
from trm.data import files
from trm.data.dataset import ARRAYS, OWN_ARRAYS, SPLITS, load
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


def test_a_reference_data_set_loads_as_it_is(tmp_path):
    """Two groups of one puzzle and two augmentations, inputs of another integer type, no manifest."""
    folder = tmp_path / "reference"
    for split, count in (("train", 6), ("test", 2)):
        (folder / split).mkdir(parents=True)
        grids, whole = np.full((count, 81), 2, dtype=np.int64), partial(np.arange, dtype=np.int32)
        arrays = {"inputs": grids, "labels": grids, "puzzle_identifiers": np.zeros(count, dtype=np.int32)}
        arrays |= {"puzzle_indices": whole(count + 1), "group_indices": whole(0, count + 1, count // 2)}
        for name, array in arrays.items():
            np.save(folder / split / f"all__{name}.npy", array)
        sizes = {"vocab_size": 11, "seq_len": 81, "total_groups": 2, "mean_puzzle_examples": 1}
        (folder / split / "dataset.json").write_text(json.dumps(REFERENCE | sizes))
    (folder / "identifiers.json").write_text('["<blank>"]')
    train = load(folder, "train")
    assert (train.groups, train.puzzles, train.inputs.dtype) == (2, 6, np.uint8)
    assert (train.meta.task, train.meta.augmentations) == ("sudoku", 0)
    with pytest.raises(UserError, match="no validation split, only train, test"):
        load(folder, "validation")


def test_the_task_of_a_reference_data_set(tmp_path, mazes):
    copy = shutil.copytree(mazes, tmp_path / "copy")  # of Sudoku: above
    (copy / "manifest.json").unlink()
    assert load(copy, "train").meta.task == "maze"


@pytest.mark.parametrize(
    "name", ["train/all__inputs.npy", "train/dataset.json", "train/all__group_indices.npy"]
)
@pytest.mark.parametrize("how", DAMAGES)
def test_damage_is_refused_by_name(tmp_path, set_4x4, name, how):
    folder = shutil.copytree(set_4x4, tmp_path / "copy")
    damage(folder / name, how)
    with pytest.raises(UserError, match=name):
        load(folder, "train")
    load(folder, "test")  # the others still can be read


def test_a_damaged_pool_is_refused(tmp_path, pool_4x4):
    folder, out = shutil.copytree(pool_4x4, tmp_path / "pool"), tmp_path / "out"
    damage(folder / "puzzles.npz", "flipped")
    for read in (lambda: load_pool(folder), lambda: build_dataset(small(), folder, out)):
        with pytest.raises(UserError, match=r"puzzles\.npz was changed or damaged"):
            read()
    with pytest.raises(
        UserError, match="was built with seed 0, but the configuration has 1: build the source again"
    ):
        build_dataset(small(seed=1), pool_4x4, out)
    assert not out.exists()


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
def test_inconsistent_data_sets_of_other_tools(tmp_path, set_4x4, name, content, words):
    folder = shutil.copytree(set_4x4, tmp_path / "copy")
    (folder / "manifest.json").unlink()
    path = folder / "train" / (name if name.endswith("json") else f"all__{name}.npy")
    path.write_text(content) if isinstance(content, str) else np.save(path, content)
    with pytest.raises(UserError, match=words):
        load(folder, "train")


def test_manifests_of_other_kinds(tmp_path, pool_4x4, set_4x4):
    (tmp_path / "x" / "train").mkdir(parents=True)
    shutil.copy(pool_4x4 / "manifest.json", tmp_path / "x")
    with pytest.raises(UserError, match="not a dataset manifest"):
        load(tmp_path / "x", "train")
    with pytest.raises(UserError, match="not a source manifest"):
        load_pool(set_4x4)
    with pytest.raises(UserError, match="is not a data set|is neither a data set"):
        load(tmp_path / "none", "train")
    document = json.loads((pool_4x4 / "manifest.json").read_text()) | {"format": 2}
    (tmp_path / "x" / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match="format 2"):
        load_pool(tmp_path / "x")


def test_an_interrupted_write_leaves_nothing_that_passes_for_done(tmp_path, pool_4x4, monkeypatch):
    target = tmp_path / "set"
    build_dataset(small(), pool_4x4, target)

    def full(path, *_):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(files, "_replace", full)
    with pytest.raises(UserError, match="No space left on device; free space"):
        build_dataset(small(train_puzzles=10), pool_4x4, target)
    assert not (target / "manifest.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["set"]  # no temporary folder stays
    monkeypatch.setattr(files.tempfile, "mkdtemp", lambda **options: full(target))
    with pytest.raises(UserError, match="set: No space left on device; free space"):
        build_dataset(small(), pool_4x4, target)


def test_what_a_killed_process_left_is_removed(tmp_path, pool_4x4, monkeypatch):
    (tmp_path / ".set.abc").mkdir()
    build_dataset(small(), pool_4x4, tmp_path / "set")
    assert (tmp_path / ".set.abc").exists()  # it may still be at work
    monkeypatch.setattr(files, "STALE", -1.0)
    build_dataset(small(), pool_4x4, tmp_path / "set")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_file_where_the_folder_should_be(tmp_path, pool_4x4):
    (tmp_path / "set").write_text("in the way")
    with pytest.raises(UserError, match="set: "):
        build_dataset(small(), pool_4x4, tmp_path / "set")
    assert (tmp_path / "set").read_text() == "in the way"


def test_manifest_reports_counts_of_puzzles_and_classes(set_4x4):
    manifest = json.loads((set_4x4 / "manifest.json").read_text())
    assert manifest["counts"]["train"]["puzzles"] == manifest["counts"]["train"]["classes"] == 40
    assert manifest["source"]["puzzles"] == 2236
    assert set(manifest["sha256"]) == {
        "identifiers.json",
        *(f"{split}/all__{name}.npy" for split in SPLITS for name in (*ARRAYS, *OWN_ARRAYS)),
        *(f"{split}/dataset.json" for split in SPLITS),
    }
