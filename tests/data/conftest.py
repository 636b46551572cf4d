"""Small real pools and data sets, built once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trm.study.schema import DataConfig
from trm.tasks.build import build_dataset, build_source


def small(**changes) -> DataConfig:
    """4x4 Sudoku: every class with 4-8 clues, three copies of each training puzzle."""
    settings = {
        "source": "generate",
        "box_rows": 2,
        "box_cols": 2,
        "clues_min": 4,
        "clues_max": 8,
        "train_puzzles": 40,
        "validation_puzzles": 20,
        "test_puzzles": 100,
        "augmentations": 3,
    }
    return DataConfig(**(settings | changes))


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
    folder = tmp_path_factory.mktemp("mazes")
    config = maze_config()
    build_source(config, folder / "source")
    build_dataset(config, folder / "source", folder / "set")
    return folder / "set"


def maze_config(**changes) -> DataConfig:
    """8x8 mazes with a path of at least 14 cells."""
    settings = {
        "task": "maze",
        "source": "generate",
        "maze_size": 8,
        "min_path": 14,
        "train_puzzles": 20,
        "validation_puzzles": 5,
        "test_puzzles": 10,
        "augmentations": 7,
    }
    return DataConfig(**(settings | changes))


def apply_numpy(rows: np.ndarray, token_map: np.ndarray, cell_map: np.ndarray) -> np.ndarray:
    """Augmented rows, uint8 [b, cells], of rows uint8 [b, cells]."""
    moved = np.take_along_axis(rows, cell_map.astype(np.int64), axis=1)
    return np.take_along_axis(token_map, moved.astype(np.int64), axis=1)
