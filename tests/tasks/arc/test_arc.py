"""ARC tasks: layout, canvases, copies and their inverses, voting."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests.data.conftest import build
from trm.cli import main
from trm.data import rng
from trm.data.dataset import load
from trm.errors import UserError
from trm.evaluation.votes import vote
from trm.study.schema import DataConfig
from trm.tasks import task_of
from trm.tasks.arc import arc, generate
from trm.tasks.arc.augment import ArcAugmenter, copy_transforms, undo
from trm.tasks.arc.spec import FAMILIES, SPEC, role_of
from trm.tasks.build import build_source
from trm.tasks.grids import dihedral_cells

FILES = tuple(str(path) for path in sorted((Path(__file__).parent / "files").glob("*.json")))
COPIES = 8
GRIDS = npst.arrays(np.uint8, st.tuples(st.integers(1, 30), st.integers(1, 30)), elements=st.integers(0, 9))


def arc_config(files=FILES, **changes) -> DataConfig:
    settings_ = {"train_puzzles": 3, "validation_puzzles": 0, "augmentations": COPIES}
    files = tuple(map(str, files))
    names = SPEC.file_names(files)
    return DataConfig(task="arc", source="json", files=files, names=names, **(settings_ | changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data set of the five hand-made tasks: three trained on whole, two tested on."""
    return build(arc_config(), tmp_path_factory.mktemp("arc"))


def identifiers(folder):
    return json.loads((folder / "identifiers.json").read_text())


@settings(max_examples=50, deadline=None)
@given(GRIDS, st.integers(0, 20))
@example(np.full((4, 4), 3, dtype=np.uint8), 0)  # a full canvas has no ends
def test_encode_and_decode(grid, larger):
    height, width = grid.shape
    side = min(30, max(height, width) + larger)
    tokens = arc.encode(grid, side)
    assert (arc.decode(tokens) == grid).all()
    canvas = tokens.reshape(side, side)
    assert (tokens >= 2).sum() == grid.size
    assert (tokens == 1).sum() == (width if height < side else 0) + (height if width < side else 0)
    if height < side:
        assert (canvas[height, :width] == 1).all()


def test_decode_of_any_prediction():
    assert arc.decode(np.zeros(900, dtype=np.uint8)) is None
    ragged = np.zeros((30, 30), dtype=np.uint8)
    ragged[0, :2], ragged[1, :5], ragged[2, :4] = 3, 4, 5
    assert arc.decode(ragged.reshape(-1)).tolist() == [[1, 1], [2, 2], [3, 3]]


@pytest.mark.parametrize("number", range(8))
def test_turns_have_inverses(number):
    grid, square = np.arange(6).reshape(2, 3), np.arange(16).reshape(4, 4)
    assert (arc.turn(arc.turn(grid, number), arc.INVERSE_TURN[number]) == grid).all()
    assert (arc.turn(square, number).reshape(-1) == dihedral_cells(4)[number]).all()


def test_a_shifted_copy_is_drawn(folder):
    """Other tools, and our own copies, put a grid anywhere on the canvas."""
    task, train = task_of("arc"), load(folder, "train")
    copies, _ = ArcAugmenter(train).canvases(*all_copies(train, COPIES + 1))
    drawn = {tuple(task.lines(row, train.meta)) for row in copies}
    assert ("(nothing)",) not in drawn
    canvas = np.zeros((30, 30), dtype=np.uint8)
    canvas[3:5, 7:9] = [[3, 4], [2, 5]]
    assert task.lines(canvas.ravel(), train.meta) == ["12", ".3"]


@pytest.mark.parametrize("given", ["", "/*/*.json"])
def test_the_public_layout_tests_on_the_evaluation_tasks(given, tmp_path, monkeypatch, capsys):
    """One task a file, in folders `training` and `evaluation`."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(f"{kind}/{k}" for kind in ("training", "evaluation") for k in range(3)):
        path = tmp_path / f"data/{name}-{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        document = json.dumps(generate.task(0, number, 6, FAMILIES, 3)[1])
        path.write_text("\ufeff" + document)  # as Windows saves it
    data = {"task": "arc", "source": "json", "files": [f"{tmp_path}/data{given}"], "arc_side": 6}
    data |= {"train_puzzles": 3, "validation_puzzles": 0, "augmentations": 1}
    Path("run.json").write_text(json.dumps({"data": data}))
    common = "--config run.json"
    assert main(f"data source {common} --out pool".split()) == 0
    assert "; 3 tasks for training, 3 for tests" in capsys.readouterr().out
    assert main(f"data build {common} --source pool --out set".split()) == 0
    manifest = json.loads(Path("set/manifest.json").read_text())
    assert set(manifest["tasks"][3:]) == {"0-3", "1-4", "2-5"}
    assert {Path(name).parent.name for name in manifest["source"]["test_files"]} == {"evaluation"}
    assert main(["data", "inspect", "set"]) == 0
    assert "source test_tasks: 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "test"),
    [
        ("data/evaluation/1a.json", "evaluation"),
        ("data/training/1a.json", "training"),
        ("evaluation/arc-agi_training_challenges.json", "training"),
        ("my evaluation/data/training/1a.json", "training"),
        ("training/arc-agi_evaluation_challenges.json", "evaluation"),
        ("data/Evaluation/1a.json", "evaluation"),
        ("data/TRAINING2/1a.json", "training"),
        ("data/eval/1a.json", "evaluation"),
        ("data/test/1a.json", "evaluation"),
        ("data/latest/1a.json", ""),
        ("1a.json", ""),
    ],
)
def test_the_folder_says_what_a_file_is_for(name, test):
    assert role_of(name) == test


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (("training/a.json", "holdout/b.json"), "holdout/b.json"),
        (("train_and_test/a.json",), "says both training and evaluation"),
    ],
)
def test_a_name_that_could_mean_two_splits_is_refused(files, words):
    with pytest.raises(UserError, match=words):
        SPEC.file_names(files)


def test_equal_files_of_other_names_are_another_data_set(tmp_path):
    """Of another split, or with other names of tasks."""
    layouts = ("training/a", "evaluation/b"), ("training/a", "training/b"), ("training/b", "evaluation/a")
    identities = set()
    for number, names in enumerate(layouts):
        files = [tmp_path / f"{number}/{name}.json" for name in names]
        for k, path in enumerate(files):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(generate.task(0, k, 6, FAMILIES, 3)[1]))
        build_source(arc_config(files, train_puzzles=None, arc_side=6), tmp_path / "pool")
        manifest = json.loads((tmp_path / "pool/manifest.json").read_text())
        identities.add(json.dumps(manifest["identity"]))
    assert len(identities) == len(layouts)


def test_training_and_test_sets(folder):
    train, test = load(folder, "train"), load(folder, "test")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert train.groups == train.puzzles == 5
    assert set(manifest["tasks"][3:]) == {"mirror", "fill"}
    assert np.diff(train.puzzle_indices)[:3].sum() == 4 + 5 + 3  # with their own test pairs
    assert np.diff(train.puzzle_indices)[3:].sum() == 5  # demonstrations only
    assert test.puzzles == 2
    assert train.puzzle_identifiers.tolist() == [1 + k * (COPIES + 1) for k in range(5)]
    assert test.puzzle_identifiers.tolist() == train.puzzle_identifiers[3:].tolist()
    hidden = {row.tobytes() for row in test.inputs}
    assert not hidden & {row.tobytes() for row in train.inputs}
    names = identifiers(folder)
    assert len(names) == train.meta.num_puzzle_identifiers == 1 + 5 * (COPIES + 1)
    assert names[0] == "<blank>"


def test_identifiers_name_the_transformation_of_the_published_task(folder):
    """That of the copy after the random symmetry of every task from a file: other tools undo it by its name."""
    test, names = load(folder, "test"), identifiers(folder)
    augmenter = ArcAugmenter(test, shifted=False)
    published = {task.name: task for task in arc.read_tasks([(name, Path(name)) for name in FILES])}
    changed = 0
    for row, puzzle in enumerate(test.puzzle_of_example):
        for copy in range(COPIES + 1):
            made = augmenter.canvases(np.array([row]), np.array([copy]))
            task, turn, colours = names[test.puzzle_identifiers[puzzle] + copy].split("|||")
            pairs = [
                [np.array(list(map(int, colours)))[arc.turn(grid, int(turn[1:]))] for grid in pair]
                for pair in published[task].test
            ]
            found = [arc.decode(made[0][0]), arc.decode(made[1][0])]
            assert any(all(np.array_equal(*each) for each in zip(found, pair)) for pair in pairs)
            changed += copy == 0 and (turn, colours) != ("t0", "0123456789")
    assert changed


def test_copies_are_the_turned_recoloured_shifted_pairs(folder):
    train = load(folder, "train")
    augmenter = ArcAugmenter(train)
    rows, copies = all_copies(train, COPIES + 1)
    tasks = train.puzzle_of_example[rows]
    turns, colours, _ = copy_transforms(rng.root_key(0, "augment"), tasks, copies)
    moved = 0
    made = augmenter.canvases(rows, copies)
    for found, grids in zip(made, (train.inputs, train.labels)):
        assert (found[copies == 0] == grids[rows][copies == 0]).all()
        for i in range(len(rows)):
            wanted = colours[i][arc.turn(arc.decode(grids[rows[i]]), int(turns[i]))]
            canvas = found[i].reshape(30, 30)
            top, left = np.argwhere(canvas >= 2).min(axis=0)
            moved += int(top + left > 0)
            height, width = wanted.shape
            assert (canvas[top : top + height, left : left + width] == wanted + 2).all()
            assert (canvas >= 2).sum() == wanted.size
            assert (canvas[top + height : top + height + 1, left : left + width] == 1).all()
            assert (canvas == 1).sum() == width * (top + height < 30) + height * (left + width < 30)
            back = undo(wanted, int(turns[i]), colours[i])
            assert (back == arc.decode(grids[rows[i]])).all()
    assert moved > len(rows) / 2
    assert augmenter.identifiers(rows, copies).max() == train.meta.num_puzzle_identifiers - 1
    # in every copy one example of each task stays where test inputs stand
    corner = (made[0][:, 0] >= 2) & (made[1][:, 0] >= 2)
    places = set(zip(tasks[corner].tolist(), copies[corner].tolist()))
    assert places >= {(task, copy) for task in range(5) for copy in range(1, COPIES + 1)}


def all_copies(puzzles, count):
    """Each example with each of `count` copies."""
    examples = np.arange(puzzles.examples)
    return np.repeat(examples, count), np.tile(np.arange(count), len(examples))


def test_votes_are_ranked_by_count_then_mean_probability():
    """The surest answer, of a single copy, is third. Not by the mean logit, in which one very sure copy outweighs the
    doubts of another."""
    a, b, c = (np.full((1, 1), value, dtype=np.uint8) for value in (1, 2, 3))
    wide = np.full((1, 2), 1, dtype=np.uint8)
    ranked = vote([a, b, b, c, wide, wide], [5.0, 10.0, -1.0, -800.0, 3.0, 3.0])
    assert [answer.grid.tolist() for answer in ranked] == [[[1, 1]], [[2]], [[1]], [[3]]]
    assert [answer.votes for answer in ranked] == [2, 2, 1, 1]
    assert ranked[1].confidence == pytest.approx((1 + 1 / (1 + math.e)) / 2, abs=1e-4)


def test_equivalent_tasks_share_a_class(tmp_path):
    document = json.loads(Path(FILES[2]).read_text())
    name, task = next(iter(document.items()))

    def changed(rows):
        return [[(9 - cell) for cell in row] for row in np.rot90(np.array(rows), 3).tolist()]

    twin = {
        "train": [{key: changed(pair[key]) for key in pair} for pair in reversed(task["train"])],
        "test": [{key: changed(pair[key]) for key in pair} for pair in task["test"]],
    }
    path = tmp_path / "a.json"
    path.write_text(json.dumps({name: task, "twin": twin}))
    first, second = arc.read_tasks([("a.json", path)])
    assert arc.class_key(first) == arc.class_key(second)
    others = arc.read_tasks([(file, Path(file)) for file in FILES])
    assert len({tuple(arc.class_key(task)) for task in others}) == 5


PAIR = '{"input": [[1]], "output": [[2]]}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{\n'a': 1}", "line 2 is not JSON"),
        ("[1]", "line 1: not an object of tasks"),
        ("{}", "no tasks"),
        ('{\n"a": {"train": []}}', "line 2: task a has no list `train`"),
        ('{\n"a": {"train": [PAIR]}}', "line 2: task a has no list `test`"),
        ('{"a": {"train": [{"input": [[1]]}], "test": [PAIR]}}', "line 1: task a train 1 is not a pair"),
        ('{"a": {"train": [PAIR], "test": [{"input": [[1], [1, 2]]}]}}', "task a test 1 input is not a grid"),
        ('{"a": {"train": [PAIR], "test": [{"input": [[10]]}]}}', "a cell that is not a colour"),
        ('{"a": {"train": [PAIR], "test": [{"input": [[true]]}]}}', "a cell that is not a colour"),
        ('{"a": {"train": [PAIR], "test": [{"input": [[1]]}]}}', "task a has no solution"),
        ('{"mirror": {"train": [PAIR], "test": [PAIR]}}', "task mirror is also in .*: remove one"),
        ('{"b": [[[1]]]}', "line 1: task b is in no file of challenges"),
        ('{"mirror": [[[1]], [[2]]]}', "line 1: task mirror has 2 solutions for 1 test inputs"),
    ],
)
def test_malformed_files_are_refused(tmp_path, text, words):
    path = tmp_path / "a.json"
    path.write_text(text.replace("PAIR", PAIR))
    files = (path, *FILES) if "mirror" in text or '"b"' in text else (path,)
    with pytest.raises(UserError, match=words) as caught:
        build_source(arc_config(files), tmp_path / "out")
    assert "a.json" in str(caught.value)
