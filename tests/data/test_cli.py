"""The command line of the data, through `python -m trm`'s own entry."""

import json
import shutil
from pathlib import Path

from tests.data.conftest import small
from trm.cli import main


def config_text(**changes) -> str:
    return small(**changes).model_dump_json(exclude_defaults=True)


def data(words: str) -> int:
    """Exit code of `trm data`."""
    return main(["data", *words.split()])


def test_source_build_inspect(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(config_text())
    Path("source").mkdir()  # as Snakemake makes it
    assert main(["data", "source", "--config", config_text(), "--files", "", "--out", "source"]) == 0
    assert data("build --config config.json --source source --out set") == 0
    capsys.readouterr()
    for folder, words in (
        ("source", "pool of 2,236 puzzles in 2,236 classes"),
        ("set", "train: 40 originals in 40 classes"),
    ):
        assert data(f"inspect {folder} --samples 1") == 0
        assert words in capsys.readouterr().out


def test_inspect_draws_mazes_and_data_sets_of_other_tools(tmp_path, capsys, mazes, set_4x4):
    shutil.copytree(set_4x4 / "test", tmp_path / "reference/test")
    for folder, words in (
        (mazes, ("cells of the shortest path: mean", "S")),
        (tmp_path / "reference", ("built by other tools", "test: 100 originals")),
    ):
        assert data(f"inspect {folder}") == 0
        text = capsys.readouterr().out
        assert all(word in text for word in words)


def test_one_configuration_serves_data_and_training(tmp_path, monkeypatch, capsys):
    """Puzzles of a CSV file whose checksum nobody wrote down, trained on with a value changed by hand."""
    monkeypatch.chdir(tmp_path)
    rows = [
        "".join("." if cell in hidden else digit for cell, digit in enumerate("1234341221434321"))
        + ",1234341221434321"
        for hidden in ((0,), (0, 5), (0, 1, 2))
    ]
    Path("a.csv").write_text("\n".join(["question,answer", *rows]) + "\n")
    sudoku = {"source": "csv", "files": ["a.csv"], "box_rows": 2, "box_cols": 2, "augmentations": 0}
    sudoku |= {"train_puzzles": 1, "validation_puzzles": 1, "test_puzzles": 1}
    model = {"d_model": 8, "heads": 1, "layers": 1, "h_cycles": 1, "l_cycles": 1, "halt_max_steps": 2}
    training = {"batch_size": 4, "rows": 40, "precision": "float32", "warmup_steps": 0}
    run = {"model": model, "data": sudoku, "training": training, "seed": 3}
    Path("run.json").write_text(json.dumps(run))
    common = "--config run.json --set training.lr=2e-3"
    assert data(f"source {common} --out pool") == 0
    assert data(f"build {common} --source pool --out set") == 0
    train = f"train {common} --dataset set --out run --checkpoints c --threads 1 --set"
    assert main([*train.split(), "seed=4"]) == 0
    result = json.loads(Path("run/training.json").read_text())
    assert (result["steps"], result["seed"], result["config"]["training"]["lr"]) == (10, 4, 2e-3)
    assert len(result["config"]["data"]["sha256"][0]) == 64
    capsys.readouterr()
    for change, words in (
        ("training.lrr=1", "--set: unknown key 'training.lrr'; did you mean 'training.lr'?"),
        ("training.lr=-1", "training.lr: must be above 0, not -1"),
        ("data.hints=3", "data.hints: must be two whole numbers"),
        ("training.lr", "must be key=value"),
    ):
        assert main([*train.split(), change]) == 2
        assert words in capsys.readouterr().err
