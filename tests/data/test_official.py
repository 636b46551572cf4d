"""The official source against a local HTTP server that plays the hub: pinned, checked, cached, resumed."""

import hashlib

import numpy as np
import pytest
from huggingface_hub import constants

from tests.data.conftest import REVISION, build
from trm.data.dataset import load
from trm.data.pool import TEST, load_pool
from trm.errors import UserError
from trm.study.schema import TASKS, DataConfig
from trm.study.tasks import OfficialFiles, spec_of
from trm.tasks.build import build_source
from trm.tasks.sudoku.classes import class_keys
from trm.tasks.sudoku.geometry import Geometry, to_text
from trm.tasks.sudoku.pool import generated_pool

REPOSITORY = "team/puzzles"


FOLDER = f"/datasets/{REPOSITORY}/resolve/{REVISION}"


def sudoku_csv(questions, answers) -> bytes:
    rows = [f"{to_text(q - 1)},{to_text(a - 1)}" for q, a in zip(questions, answers)]
    return "\n".join(["question,answer", *rows]).encode()


@pytest.fixture(scope="module")
def puzzles():
    return generated_pool(DataConfig(source="generate", pool=60))


@pytest.fixture
def sudoku_hub(hub, monkeypatch, puzzles):
    """40 training and 20 test puzzles, and one training puzzle that is a test puzzle with digits renamed."""
    renamed = np.array([0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 2], dtype=np.uint8)
    grids = puzzles.questions, puzzles.answers
    train = sudoku_csv(*(np.concatenate([grid[:40], renamed[grid[45:46]]]) for grid in grids))
    contents = {"train.csv": train, "test.csv": sudoku_csv(*(grid[40:] for grid in grids))}
    hub.files |= {f"{FOLDER}/{name}": content for name, content in contents.items()}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    files = OfficialFiles(REPOSITORY, REVISION, digests, first_revision=REVISION)
    monkeypatch.setattr(spec_of("sudoku"), "official", files)
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
    assert sudoku_hub.served == 2
    build_source(CONFIG, tmp_path / "b")
    assert sudoku_hub.served == 2
    damaged = next(tmp_path.glob("cache/**/test.csv"))
    damaged.write_text("damaged")
    build_source(CONFIG, tmp_path / "b")
    assert sudoku_hub.served == 3


def test_other_bytes_are_refused(sudoku_hub, tmp_path):
    sudoku_hub.files[f"{FOLDER}/train.csv"] += b"\n"
    with pytest.raises(UserError, match=r"train\.csv of .* with the SHA-256 .*, not ") as caught:
        build_source(CONFIG, tmp_path / "a")
    assert "data.source=csv" in str(caught.value)
    assert not list((tmp_path / "cache").glob("**/train.csv"))


@pytest.mark.parametrize("how", ["refused", "nobody listens", "offline"])
def test_no_network_offers_the_other_sources(sudoku_hub, tmp_path, monkeypatch, how):
    sudoku_hub.refuse = [404]
    if how == "nobody listens":
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", how == "offline")
    with pytest.raises(UserError, match="cannot be downloaded .*data.source=generate, .*data.source=csv"):
        build_source(CONFIG, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_pins_are_whole():
    for source in filter(None, (spec_of(task).official for task in TASKS)):
        assert len(source.revision) == 40
        assert list(source.sha256) == ["train.csv", "test.csv"]
        assert all(len(digest) == 64 for digest in source.sha256.values())
