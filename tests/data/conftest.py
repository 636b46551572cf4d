"""Small real pools and data sets, built once."""

import hashlib
import time
from pathlib import Path

import pytest
from huggingface_hub import constants

from snakemake_executor_plugin_tpu.emulator.web import Handler, HttpServer
from trm.data.pool import load_pool
from trm.study.schema import DataConfig
from trm.tasks.build import build_dataset, build_source
from trm.tasks.sudoku.geometry import to_text


def build(config: DataConfig, root: Path) -> Path:
    """Folder `root`/set of a data set; its pool is in `root`/source."""
    build_source(config, root / "source")
    build_dataset(config, root / "source", root / "set")
    return root / "set"


def small(**changes) -> DataConfig:
    """4x4 Sudoku: every class with 4-8 clues, three copies of each training puzzle."""
    settings = {"source": "generate", "box_rows": 2, "box_cols": 2, "clues_min": 4, "clues_max": 8}
    settings |= {"train_puzzles": 40, "validation_puzzles": 20, "test_puzzles": 100, "augmentations": 3}
    return DataConfig(**(settings | changes))


def csv_config(*paths: object, **changes) -> DataConfig:
    """4x4 Sudoku from CSV files."""
    return small(source="csv", files=tuple(map(str, paths)), clues_min=0, clues_max=0, **changes)


@pytest.fixture(scope="session")
def pool_4x4(tmp_path_factory) -> Path:
    """Folder of the 4x4 pool."""
    folder = tmp_path_factory.mktemp("sources") / "four"
    build_source(small(), folder)
    return folder


@pytest.fixture(scope="session")
def set_4x4(tmp_path_factory, pool_4x4) -> Path:
    """Folder of a 4x4 data set. Read only."""
    folder = tmp_path_factory.mktemp("datasets") / "four"
    build_dataset(small(), pool_4x4, folder)
    return folder


@pytest.fixture(scope="session")
def mazes(tmp_path_factory) -> Path:
    """Folder of a data set of 8x8 mazes with all symmetries. Read only."""
    return build(maze_config(), tmp_path_factory.mktemp("mazes"))


def maze_config(**changes) -> DataConfig:
    """8x8 mazes with a path of at least 14 cells."""
    settings = {"task": "maze", "source": "generate", "maze_size": 8, "min_path": 14, "augmentations": 7}
    settings |= {"train_puzzles": 20, "validation_puzzles": 5, "test_puzzles": 10}
    return DataConfig(**(settings | changes))


def pool_csv(path: Path, pool_folder: Path, count: int, start: int = 0) -> list[str]:
    """Write puzzles of a 4x4 pool as a CSV file; its lines."""
    pool, _ = load_pool(pool_folder)
    rows = zip(pool.questions[start : start + count], pool.answers[start : start + count])
    lines = [f"made,{to_text(q - 1)},{to_text(a - 1)},{i}\n" for i, (q, a) in enumerate(rows)]
    path.write_text("source,question,answer,rating\n" + "".join(lines))
    return lines


REVISION = "a" * 40
"""Of the files that the hub serves."""


class Hub(HttpServer):
    """Serves files and counts them; `refuse` are statuses to answer first."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), File)
        self.files, self.refuse, self.served = {}, [], 0
        self.start()


class File(Handler):
    def do_GET(self):
        hub = self.server
        content = hub.files.get(self.path)
        if hub.refuse or content is None:
            self.send_error(hub.refuse.pop(0) if hub.refuse else 404)
            return
        hub.served += self.command == "GET"
        digest = hashlib.sha256(content).hexdigest()
        self.answer(200, content, ("ETag", f'"{digest}"'), ("X-Repo-Commit", REVISION))

    do_HEAD = do_GET


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A server of files that plays the Hugging Face hub."""
    server = Hub()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("TRM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the client's attempts
    yield server
    server.stop()
