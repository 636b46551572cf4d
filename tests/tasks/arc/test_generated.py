"""Generated ARC tasks, and canvases smaller than 30x30."""

import json

import numpy as np
import pytest

from tests.data.conftest import build
from tests.tasks.arc.test_arc import arc_config
from trm.data.dataset import load
from trm.data.pool import load_pool
from trm.errors import UserError
from trm.study.dataset_identity import shape
from trm.study.schema import DataConfig
from trm.tasks.arc.spec import FAMILIES
from trm.tasks.build import build_source

SMALL = {"arc_side": 6, "train_puzzles": 10, "validation_puzzles": 5, "test_puzzles": 5, "augmentations": 3}


def generated(**changes) -> DataConfig:
    return DataConfig(task="arc", source="generate", **(SMALL | changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build(generated(), tmp_path_factory.mktemp("tasks"))


def tasks_of(folder):
    return json.loads((folder / "manifest.json").read_text())["tasks"]


def test_each_split_has_every_family(folder):
    families = [name.split("-")[0] for name in tasks_of(folder)]
    assert sorted(families[-5:]) == sorted(families[-10:-5]) == sorted(FAMILIES)
    train, test = load(folder, "train"), load(folder, "test")
    assert (train.meta.seq_len, test.puzzles, train.puzzles) == (36, 5, 20)
    assert np.diff(train.puzzle_indices).tolist() == [10] * 10 + [9] * 10
    assert shape(generated()).seq_len == 36
    hidden = {row.tobytes() for row in test.inputs}
    assert not hidden & {row.tobytes() for row in train.inputs}


def test_a_larger_pool_moves_no_task(tmp_path, folder):
    before, after = tasks_of(folder), tasks_of(build(generated(train_puzzles=20), tmp_path))
    assert after[:10] == before[:10]
    assert after[-10:] == before[-10:]


def test_tasks_that_do_not_fit_the_canvas_are_left_out(tmp_path):
    config = arc_config(arc_side=5, train_puzzles=2, augmentations=1)
    made, (_, manifest) = build(config, tmp_path), load_pool(tmp_path / "source")
    assert manifest["too_large"] == 1  # `stack` ends in six rows
    assert "stack" not in tasks_of(made)
    assert load(made, "train").inputs.shape[1] == 25
    alone = tmp_path / "large.json"
    pair = {"input": [[1] * 9], "output": [[2]]}
    alone.write_text(json.dumps({"train": [pair], "test": [pair]}))
    with pytest.raises(UserError, match="grids larger than data.arc_side=5: raise it"):
        build_source(arc_config([alone], arc_side=5), tmp_path / "other")
