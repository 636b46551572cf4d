"""A run and a data set that do not belong together are not used together, or it is said."""

import base64
import json
import shutil
from pathlib import Path

import pytest

from tests.data.conftest import build
from tests.training.conftest import DATA, config, train_words
from trm.cli import main
from trm.study.schema import DataConfig
from trm.training.outputs import load_weights, save_weights

SPLITS = {"train_puzzles": 40, "validation_puzzles": 5, "test_puzzles": 20, "augmentations": 1}
ARC = {"task": "arc", "source": "generate", "arc_side": 6, "pool": 12, "augmentations": 1}
ARC |= {"train_puzzles": 8, "validation_puzzles": 0, "test_puzzles": 4}
SUDOKU = DATA | SPLITS


class Place:
    """Data sets and runs below a folder, made when first asked for."""

    def __init__(self, root: Path):
        self.root = root

    def data(self, fields: dict, **changes) -> Path:
        config = DataConfig(**(fields | changes))
        home = self.root / "-".join([config.task, *(f"{key}{value}" for key, value in changes.items())])
        return home / "set" if home.exists() else build(config, home)

    def train(self, name: str, folder: Path, data: dict, **training) -> int:
        run = config(training={"steps": 2} | training).model_copy(update={"data": DataConfig(**data)})
        words = train_words(run, folder, self.root, "--out", str(self.root / name))
        return main([*words, "--checkpoints", str(self.root / f"{name}-checkpoints")])

    def evaluate(self, name: str, folder: Path) -> int:
        out = self.root / "evaluation.json"
        words = f"evaluate --run {self.root / name} --dataset {folder} --out {out} --threads 1"
        return main(words.split())

    def splits(self) -> set[str]:
        """What the last evaluation measured."""
        return {row["split"] for row in json.loads((self.root / "evaluation.json").read_text())["results"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    """Runs on data sets of seed 0: `arc`, `sudoku` and `six`, 6x6 Sudoku."""
    found = Place(tmp_path_factory.mktemp("origin"))
    assert found.train("arc", found.data(ARC), ARC) == 0
    assert found.train("sudoku", found.data(SUDOKU), SUDOKU) == 0
    assert found.train("six", found.data(SIX, clues_max=20), SIX) == 0
    return found


def by_other_tools(folder: Path, out: Path) -> Path:
    shutil.copytree(folder, out)
    (out / "manifest.json").unlink()
    return out


def by_an_earlier_version(run: Path, out: Path) -> None:
    trained = load_weights(run)
    meta = {key: value for key, value in trained.meta.items() if key != "data"}
    save_weights(out / "weights.safetensors", trained.tensors, trained.config, meta)


@pytest.mark.parametrize("earlier", [False, True])
def test_identifiers_that_mean_something_else_are_refused(place, earlier, tmp_path, capsys):
    by_an_earlier_version(place.root / "arc", tmp_path / "arc")
    run = str(tmp_path / "arc") if earlier else "arc"
    public = by_other_tools(place.data(ARC, seed=7), tmp_path / "public")
    for other in (place.data(ARC, seed=7), place.data(ARC, augmentations=3), public):
        assert place.evaluate(run, other) == 2
        assert f"the puzzle identifiers of {other} are not those" in capsys.readouterr().err
    assert place.evaluate(run, place.data(ARC)) == 0
    assert not capsys.readouterr().err


SIX = SUDOKU | {"box_cols": 3, "clues_max": 20}
SEVEN = {"seed": 7, "test_puzzles": 2000}
"""Its test puzzles are among those of seed 0, each under another symmetry."""


@pytest.mark.parametrize(
    ("run", "fields", "changes", "what"),
    [
        ("six", SIX, {"box_cols": 2, "clues_max": 8}, "seq_len 16, but the run was trained with 36"),
        # boxes of 2x3 and of 3x2 cells make grids of equal size
        ("six", SIX, {"box_rows": 3, "box_cols": 2}, "boxes (3, 2), but the run was trained with (2, 3)"),
        ("sudoku", SUDOKU, SEVEN, "puzzles that sudoku was trained on"),
    ],
)
def test_puzzles_of_another_kind_and_training_puzzles_are_refused(place, run, fields, changes, what, capsys):
    assert place.evaluate(run, place.data(fields, **changes)) == 2
    assert what in capsys.readouterr().err


def test_identifiers_are_compared_without_a_manifest(place, tmp_path, capsys):
    public = by_other_tools(place.data(ARC), tmp_path / "public")
    assert place.evaluate("arc", public) == 0
    assert not place.train(str(tmp_path / "run"), public, ARC | {"augmentations": 0})
    assert place.evaluate(str(tmp_path / "run"), public) == 0
    capsys.readouterr()
    assert place.evaluate(str(tmp_path / "run"), place.data(ARC, seed=7)) == 2
    capsys.readouterr()
    (public / "identifiers.json").unlink()
    assert place.evaluate(str(tmp_path / "run"), public) == 0
    assert not capsys.readouterr().err  # the files are those that it was trained on


@pytest.mark.parametrize(("name", "value"), [("seed", 7), ("clues_max", 7), ("test_puzzles", 9)])
def test_a_data_set_that_contradicts_the_config_is_refused(place, name, value, capsys):
    assert place.train("never", place.data(SUDOKU, **{name: value}), SUDOKU) == 2
    own = DataConfig(**SUDOKU).model_dump()[name]
    assert f"has data.{name} {value}, but the run's config has {own}" in capsys.readouterr().err
    assert not (place.root / "never" / "weights.safetensors").exists()


def test_another_data_set_is_said_and_is_no_training_set(place, caplog):
    """4x4 puzzles of other numbers of clues: none of them was trained on."""
    assert place.evaluate("sudoku", place.data(SUDOKU)) == 0
    assert not caplog.messages
    assert place.splits() == {"test", "train"}
    other = place.data(SUDOKU, clues_min=9, clues_max=10)
    assert place.evaluate("sudoku", other) == 0
    (said,) = caplog.messages
    what = "is not the data set that the run was trained on, data.clues_max is 10, not 8"
    assert said.startswith(f"{other} {what}")
    assert place.splits() == {"test"}


@pytest.mark.parametrize(("sample", "said"), [(2**17, None), (4, "with 4 of the 40 puzzles")])
def test_a_part_of_the_training_puzzles_is_not_taken_for_all(
    place, sample, said, tmp_path, caplog, capsys, monkeypatch
):
    """Every training puzzle of a set of common size is compared; of a sample, the number is told."""
    monkeypatch.setattr("trm.tasks.base.SAMPLE", sample)
    place = Place(tmp_path)
    assert place.train("run", place.data(SUDOKU), SUDOKU) == 0
    assert place.evaluate("run", place.data(SUDOKU, clues_min=9, clues_max=10)) == 0
    told = " ".join(message for message in caplog.messages if "were compared" in message)
    assert said in told if said else not told
    keys = base64.b64decode(load_weights(tmp_path / "run").meta["data"]["puzzles"])
    assert len(keys) == 8 * min(40, sample)
    capsys.readouterr()
    leaks = by_other_tools(place.data(SUDOKU), tmp_path / "leaks")
    shutil.rmtree(leaks / "test")
    shutil.copytree(leaks / "train", leaks / "test")
    assert place.evaluate("run", leaks) == 2
    assert f"{'at least ' if said else ''}{min(40, sample)} of the 40 test puzzles" in capsys.readouterr().err


def test_a_run_does_not_start_from_one_that_was_trained_on_its_test(place, capsys):
    folder = place.data(SUDOKU, **SEVEN)
    assert place.train("second", folder, SUDOKU | SEVEN, init_from="sudoku") == 2
    assert "puzzles that sudoku was trained on" in capsys.readouterr().err
    assert place.train("second", place.data(SUDOKU), SUDOKU, init_from="sudoku") == 0


def test_a_run_resumes_on_its_own_data_alone(place, tmp_path, capsys):
    """Without a manifest only the files can tell two data sets apart."""
    fields = SUDOKU | {"augmentations": 0}
    for name, seed in (("a", 0), ("b", 7)):
        by_other_tools(place.data(SUDOKU, seed=seed), tmp_path / name / "set")
    assert place.train(str(tmp_path / "run"), tmp_path / "a" / "set", fields) == 0
    kept = [load_weights(run).meta["data"]["puzzles"] for run in (place.root / "sudoku", tmp_path / "run")]
    assert kept == 2 * [json.loads((place.data(SUDOKU) / "manifest.json").read_text())["train_keys"]]
    assert place.train(str(tmp_path / "run"), tmp_path / "b" / "set", fields) == 2
    assert "is of another run: dataset.identity is" in capsys.readouterr().err
