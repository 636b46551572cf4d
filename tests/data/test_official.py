"""The official source against a local HTTP server that plays the hub: pinned, checked, cached, resumed."""

import hashlib

import numpy as np
import pytest
from huggingface_hub import constants

from tests.data.conftest import REVISION, build, maze_config
from trm.data.dataset import load
from trm.data.pool import TEST, load_pool
from trm.errors import UserError
from trm.study.schema import TASKS, DataConfig
from trm.study.tasks import OfficialFiles, spec_of
from trm.tasks.build import build_source
from trm.tasks.maze.maze import canonical_mazes, generated_pool
from trm.tasks.maze.spec import CHARACTERS
from trm.tasks.sudoku.classes import class_keys
from trm.tasks.sudoku.geometry import Geometry, to_text
from trm.tasks.sudoku.pool import generated_pool as generated_sudoku

REPOSITORY = "team/puzzles"


def publish(hub, monkeypatch, task, train: str, test: str) -> None:
    """Put two files on the hub and pin them."""
    contents = {"train.csv": train.encode(), "test.csv": test.encode()}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    files = OfficialFiles(REPOSITORY, REVISION, digests, first_revision=REVISION)
    monkeypatch.setattr(spec_of(task), "official", files)
    for name, content in contents.items():
        hub.files[f"/datasets/{REPOSITORY}/resolve/{REVISION}/{name}"] = content


HEADER = "source,question,answer,rating\n"


def sudoku_csv(questions, answers) -> str:
    rows = enumerate(zip(questions, answers))
    return HEADER + "".join(f"here,{to_text(q - 1)},{to_text(a - 1)},{i}\n" for i, (q, a) in rows)


@pytest.fixture(scope="module")
def puzzles():
    return generated_sudoku(DataConfig(source="generate", pool=60))


@pytest.fixture
def sudoku_hub(hub, monkeypatch, puzzles):
    """40 training and 20 test puzzles, and one training puzzle that is a test puzzle with digits renamed."""
    renamed = np.array([0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 2], dtype=np.uint8)
    grids = puzzles.questions, puzzles.answers
    train = sudoku_csv(*(np.concatenate([grid[:40], renamed[grid[45:46]]]) for grid in grids))
    publish(hub, monkeypatch, "sudoku", train, sudoku_csv(*(grid[40:] for grid in grids)))
    return hub


CONFIG = DataConfig(train_puzzles=30, validation_puzzles=8, augmentations=2)


def test_own_division_is_kept_and_leaks_are_left_out(sudoku_hub, tmp_path, puzzles):
    folder = build(CONFIG, tmp_path)
    pool, manifest = load_pool(tmp_path / "source")
    assert (manifest["revision"], manifest["read"], manifest["equivalent_removed"]) == (REVISION, 61, 1)
    assert (pool.part == TEST).sum() == 20

    def forms(questions, answers):
        return {row.tobytes() for row in class_keys(Geometry(3, 3), questions - 1, answers - 1)[0]}

    parts = {name: load(folder, name) for name in ("train", "validation", "test")}
    found = {name: forms(part.inputs, part.labels) for name, part in parts.items()}
    assert found["test"] == forms(puzzles.questions[40:], puzzles.answers[40:])
    trained = found["train"] | found["validation"]
    assert len(trained) == 38
    assert trained <= forms(puzzles.questions[:40], puzzles.answers[:40])


def test_downloads_once(sudoku_hub, tmp_path):
    build_source(CONFIG, tmp_path / "a")
    assert len(sudoku_hub.asked) == 2
    build_source(CONFIG, tmp_path / "b")
    assert len(sudoku_hub.asked) == 2
    damaged = next(tmp_path.glob("cache/**/test.csv"))
    damaged.write_text("damaged")
    build_source(CONFIG, tmp_path / "b")
    assert len(sudoku_hub.asked) == 3


def test_broken_connections_are_resumed(sudoku_hub, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 500)
    sudoku_hub.cut, sudoku_hub.refuse = 1500, [503]
    build_source(CONFIG, tmp_path / "a")
    starts = [start for path, start in sudoku_hub.asked if "train" in path]
    assert starts == list(range(0, 1500 * len(starts), 1500))
    assert len(starts) > 1


def test_other_bytes_are_refused(sudoku_hub, tmp_path):
    sudoku_hub.files[f"/datasets/{REPOSITORY}/resolve/{REVISION}/train.csv"] += b"\n"
    with pytest.raises(UserError, match=r"train\.csv of .* with the SHA-256 .*, not ") as caught:
        build_source(CONFIG, tmp_path / "a")
    assert "data.source=csv" in str(caught.value)
    assert not list((tmp_path / "cache").glob("**/train.csv"))


@pytest.mark.parametrize("how", [[404], [500] * 50, "nobody listens", "offline"])
def test_no_network_offers_the_other_sources(sudoku_hub, tmp_path, monkeypatch, how):
    if isinstance(how, list):
        sudoku_hub.refuse = how
    elif how == "nobody listens":
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    else:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="cannot be downloaded") as caught:
        build_source(CONFIG, tmp_path / "a")
    assert "data.source=generate" in str(caught.value)
    assert "data.source=csv" in str(caught.value)
    assert not (tmp_path / "a").exists()


def test_mazes(hub, monkeypatch, tmp_path):
    made = generated_pool(maze_config(maze_size=30, min_path=60, pool=12))
    rows = [
        ",".join(["", *("".join(CHARACTERS[t - 1] for t in grid.tolist()) for grid in pair), "1\n"])
        for pair in zip(made.questions, made.answers)
    ]
    publish(hub, monkeypatch, "maze", HEADER + "".join(rows[:8]), HEADER + "".join(rows[8:]))
    sizes = {"maze_size": 30, "train_puzzles": 5, "validation_puzzles": 2, "test_puzzles": None}
    test = load(build(maze_config(source="official", **sizes), tmp_path), "test")
    forms, published = (
        {row.tobytes() for row in canonical_mazes(30, grids)} for grids in (test.inputs, made.questions[8:])
    )
    assert forms == published


def test_pins_are_whole():
    for source in filter(None, (spec_of(task).official for task in TASKS)):
        assert len(source.revision) == 40
        assert list(source.sha256) == ["train.csv", "test.csv"]
        assert all(len(digest) == 64 for digest in source.sha256.values())
