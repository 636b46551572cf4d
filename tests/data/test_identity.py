"""Identities name what data depend on and nothing else; that they name all of it: tests/study/test_schema_walk.py."""

from dataclasses import replace

import pytest

from tests.data.conftest import maze_config, small
from trm.errors import UserError
from trm.study.dataset_identity import dataset_identity, shape, source_identity
from trm.study.schema import DataConfig
from trm.study.tasks import spec_of

CONFIGS = [
    small(),
    small(box_cols=3, test_puzzles=30),
    DataConfig(),
    DataConfig(source="csv", sha256=("a" * 64,), files=("a.csv",)),
    maze_config(),
    maze_config(unique_path=True),
    DataConfig(task="maze", source="official"),
    DataConfig(task="arc", source="json", sha256=("a" * 64, "b" * 64)),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_an_identity_is_a_config_of_the_same_identity(config):
    for identity in (source_identity, dataset_identity):
        found = identity(config)
        assert found.get("symmetry") == (None if config.source == "generate" else "random")
        assert identity(DataConfig(**found)) == found


def test_fields_that_nothing_reads_are_no_part():
    splits = {"train_puzzles": 5, "validation_puzzles": 5, "test_puzzles": 5, "augmentations": 9}
    assert source_identity(small()) == source_identity(small(maze_size=12, **splits))
    assert dataset_identity(small()) == dataset_identity(small(min_path=3))
    assert dataset_identity(small()) == dataset_identity(small(hints=(0, 4)))  # of the run alone
    files = [
        DataConfig(source="csv", sha256=("a" * 64,), files=(name,)) for name in ("here.csv", "there.csv")
    ]
    assert dataset_identity(files[0]) == dataset_identity(files[1])
    assert "walls" not in source_identity(maze_config())  # which are open


def test_a_pool_of_zero_is_what_the_splits_ask_for():
    config = small(box_rows=3, box_cols=3)
    assert source_identity(config)["pool"] == 160
    assert source_identity(config) == source_identity(config.model_copy(update={"pool": 160}))
    assert source_identity(small())["pool"] == 0  # every class


def test_another_revision_of_the_official_files_is_another_data_set(monkeypatch):
    first = source_identity(DataConfig())
    assert "sha256" not in first
    later = replace(spec_of("sudoku").official, revision="b" * 40)
    monkeypatch.setattr(spec_of("sudoku"), "official", later)
    assert source_identity(DataConfig()) == first | {"sha256": list(later.sha256.values())}
    assert source_identity(DataConfig(**source_identity(DataConfig()))) == source_identity(DataConfig())


def test_shapes():
    assert shape(small()).seq_len == 16
    assert (shape(DataConfig()).seq_len, shape(DataConfig()).vocab_size) == (81, 11)
    assert shape(DataConfig()).num_puzzle_identifiers == 1
    assert (shape(maze_config(maze_size=30)).seq_len, shape(maze_config()).vocab_size) == (900, 6)
    arc = shape(DataConfig(task="arc", source="json"))
    assert (arc.seq_len, arc.vocab_size, arc.num_puzzle_identifiers) == (900, 12, None)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (DataConfig(task="arc", source="csv"), "has no arc puzzles"),
        (DataConfig(task="maze", source="json"), "has no maze puzzles"),
        (DataConfig(box_rows=2), "official Sudoku are 9x9"),
        (DataConfig(task="maze", maze_size=10), "official mazes are 30x30"),
        (small(clues_max=16), "nothing to solve"),
        (DataConfig(source="generate", clues_min=5, clues_max=4), "above data.clues_max"),
        (DataConfig(source="csv", files=("a.csv", "b.csv"), sha256=("a" * 64,)), "1 checksums for 2"),
        (DataConfig(source="csv", files=("a.csv",)), "0 checksums for 1"),
        (DataConfig(source="generate"), "give data.pool"),
        (maze_config(hints=(0, 2)), "questions of maze have no clues to add"),
        (maze_config(walls="uniform"), "maze_size must be odd, not 8"),
        (maze_config(maze_size=9, walls="uniform", unique_path=True), r"unique without data\.unique_path"),
    ],
)
def test_impossible_combinations(config, words):
    with pytest.raises(UserError, match=words):
        dataset_identity(config)
