"""The command line of the data, through `python -m trm`'s own entry."""

import json
import shutil
from pathlib import Path

from tests.data.conftest import pool_csv
from tests.training.conftest import DATA, MODEL, TRAINING
from trm.cli import main


def data(words: str) -> int:
    """Exit code of `trm data`."""
    return main(["data", *words.split()])


def test_inspect_draws_pools_and_data_sets_and_those_of_other_tools(
    tmp_path, capsys, pool_4x4, set_4x4, mazes
):
    shutil.copytree(set_4x4 / "test", tmp_path / "reference/test")
    for folder, words in (
        (pool_4x4, ("pool of 2,236 puzzles in 2,236 classes",)),
        (set_4x4, ("train: 40 originals in 40 classes",)),
        (mazes, ("cells of the shortest path: mean", "S")),
        (tmp_path / "reference", ("built by other tools", "test: 100 originals")),
    ):
        assert data(f"inspect {folder} --samples 1") == 0
        text = capsys.readouterr().out
        assert all(word in text for word in words)


def test_one_configuration_serves_data_and_training(tmp_path, pool_4x4, monkeypatch, capsys):
    """Puzzles of a CSV file whose checksum nobody wrote down, trained on with a value changed by hand."""
    monkeypatch.chdir(tmp_path)
    row = pool_csv(Path("a.csv"), pool_4x4, 3)[0]
    with Path("a.csv").open("a") as file:
        file.write(row)
    sizes = {"train_puzzles": 1, "validation_puzzles": 1, "test_puzzles": 1}
    training = TRAINING | {"steps": 10, "batch_size": 4}
    run = {"model": MODEL, "data": DATA | sizes | {"source": "csv", "files": ["a.csv"]}, "training": training}
    Path("run.json").write_text(json.dumps(run))
    common = "--config run.json --set training.lr=2e-3"
    Path("pool").mkdir()  # as Snakemake makes it
    assert main(["data", "source", *common.split(), "--files", "", "--out", "pool"]) == 0
    assert "3 puzzles in 3 classes; 1 of 4 read were left out" in capsys.readouterr().out
    assert data(f"build {common} --source pool --out set") == 0
    train = f"train {common} --dataset set --out run --checkpoints c --threads 1 --set"
    assert main([*train.split(), "seed=4"]) == 0
    result = json.loads(Path("run/training.json").read_text())
    assert (result["steps"], result["seed"], result["config"]["training"]["lr"]) == (10, 4, 2e-3)
    assert len(result["config"]["data"]["sha256"][0]) == 64
    capsys.readouterr()
    for change, words in (
        ("training.lrr=1", "--set: unknown key 'training.lrr'; did you mean 'training.lr'?"),
        ("data.hints=3", "data.hints: must be two whole numbers"),
        ("training.lr", "must be key=value"),
    ):
        assert main([*train.split(), change]) == 2
        assert words in capsys.readouterr().err
