"""Generated tasks of the families that the small fixtures belong to, and canvases smaller than 30x30."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.data.conftest import build
from tests.tasks.arc.test_arc import FILES, arc_config
from trm.cli import main
from trm.data.dataset import load
from trm.data.pool import load_pool
from trm.errors import UserError
from trm.study.dataset_identity import shape, source_identity
from trm.study.schema import DataConfig
from trm.tasks.arc.arc import class_key, generated_pool, read_tasks
from trm.tasks.arc.generate import tasks
from trm.tasks.arc.spec import FAMILIES
from trm.tasks.build import build_source

RULES = {
    "mirror": lambda grid: grid[:, ::-1],
    "fill": lambda grid: np.where(grid[:, :1] > 0, grid[:, :1], grid),
    "stack": lambda grid: np.concatenate([grid, grid]),
    "middle": lambda grid: grid[len(grid) // 2 :, len(grid[0]) // 2 :][:1, :1],
}


def pairs_of(document):
    """Questions and answers of a task's document."""
    return [
        (np.array(pair["input"]), np.array(pair["output"])) for pair in document["train"] + document["test"]
    ]


def test_every_pair_follows_the_rule_of_its_family():
    for name, document in tasks(25, 6, seed=3).items():
        pairs = pairs_of(document)
        assert len(pairs) == 10
        assert all(max(*question.shape, *answer.shape) <= 6 for question, answer in pairs)
        family = name.split("-")[0]
        if family == "recolour":
            cells = [cell for q, s in pairs for cell in zip(q.ravel().tolist(), s.ravel().tolist())]
            assert len({(a, b) for a, b in cells if a != b}) == 1
        else:
            assert all(np.array_equal(RULES[family](question), answer) for question, answer in pairs), name


def test_two_rules_are_applied_one_after_the_other():
    for name, document in tasks(20, 6, 1, ("fill+mirror", "fill+stack", "recolour+mirror")).items():
        for question, answer in pairs_of(document):
            if name.startswith("recolour"):
                assert len(set(question[RULES["mirror"](answer) != question].tolist())) <= 1
            else:
                second = RULES["stack" if "stack" in name else "mirror"]
                assert np.array_equal(second(RULES["fill"](question)), answer)
                assert len(answer) <= 6


SMALL = {"arc_side": 6, "train_puzzles": 10, "validation_puzzles": 5, "test_puzzles": 5, "augmentations": 3}


def generated(**changes) -> DataConfig:
    return DataConfig(task="arc", source="generate", **(SMALL | changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build(generated(), tmp_path_factory.mktemp("tasks"))


def tasks_of(folder):
    return json.loads((folder / "manifest.json").read_text())["tasks"]


def test_a_generated_source_has_families():
    config = generated(pool=10, arc_families=("mirror", "fill+stack"), arc_pairs=4)
    pool = generated_pool(config)
    assert pool.names[:3] == ["mirror-0", "fill+stack-1", "mirror-2"]
    assert np.diff(pool.puzzle_indices).tolist() == [4] * 10
    with pytest.raises(UserError, match=r"arc_families are for data\.source=generate"):
        source_identity(config.model_copy(update={"source": "json", "sha256": ("ab",)}))


def test_the_command_writes_the_official_layout(tmp_path, capsys):
    out = tmp_path / "generated.json"
    options = ["--count", "8", "--side", "5", "--families", "mirror,fill", "--pairs", "4", "--seed", "2"]
    assert main(["data", "tasks", *options, "--out", str(out)]) == 0
    assert "8 tasks of mirror, fill" in capsys.readouterr().out
    assert json.loads(out.read_text()) == tasks(8, 5, 2, ("mirror", "fill"), 4)
    read = read_tasks([("generated.json", out)])
    assert [task.name for task in read[:3]] == ["mirror-2-0", "fill-2-1", "mirror-2-2"]
    assert not any(task.evaluation for task in read)
    assert [len(task.train) for task in read] == [3] * 8
    classes = {tuple(class_key(task)) for task in read}
    assert not classes & {tuple(class_key(task)) for task in read_tasks([(p, Path(p)) for p in FILES])}


def test_tasks_are_a_function_of_seed_and_number():
    assert tasks(5, 6, 1) == dict(list(tasks(9, 6, 1).items())[:5])
    assert tasks(5, 6, 1) != tasks(5, 6, 2)
    # fewer pairs are the first ones
    assert tasks(5, 6, 1, pairs=3)["mirror-1-1"]["train"] == tasks(5, 6, 1)["mirror-1-1"]["train"][:2]


def test_files_of_two_seeds_can_be_used_together(tmp_path):
    files = [(f"{seed}.json", tmp_path / f"{seed}.json") for seed in (0, 1, 12)]
    for (_, path), seed in zip(files, (0, 1, 12)):
        path.write_text(json.dumps(tasks(20, 6, seed)))
    assert len(read_tasks(files)) == 60


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"side": 3}, "side is 3; give 4 to 30"),
        ({"pairs": 1}, "pairs is 1; give 2 to 50"),
        ({"count": 0}, "tasks is 0"),
        ({"families": ("miror",)}, "unknown family of ARC tasks 'miror': choose from recolour, mirror"),
        ({"families": ("mirror+mirror",)}, "or join two by"),
    ],
)
def test_what_cannot_be_made_is_refused(options, words):
    with pytest.raises(UserError, match=words):
        tasks(**({"count": 5, "side": 6, "seed": 0} | options))


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
