"""`study compare`: two runs side by side."""

import json

import pytest

from trm.errors import UserError
from trm.results.compare import compare, find_run


@pytest.fixture
def runs(tmp_path):
    for name, lr, exact in (("one-a", 1e-3, 0.5), ("two-b", 2e-3, 0.75)):
        folder = tmp_path / name
        folder.mkdir()
        costs = {"parameters": 10, "train_flops": 1e9, "wall_seconds": 2.0, "rows_per_second": 5.0}
        training = {"run": name, "fingerprint": name, "config": {"training": {"lr": lr, "steps": 4}}, **costs}
        (folder / "training.json").write_text(json.dumps(training))
        (folder / "history.csv").write_text(f"step,train/loss,eval/exact_accuracy\n2,1.5,\n4,{lr},{exact}\n")
        rows = [
            {"split": "test", "policy": "fixed", "steps": steps, "restarts": 1, "exact_accuracy": exact}
            for steps in (4, 4 * len(name) if lr < 2e-3 else 8)
        ]
        evaluation = {"run": name, "fingerprint": name, "results": rows}
        (folder / "evaluation-main.json").write_text(json.dumps(evaluation))
    return tmp_path


def test_it_shows_what_differs(runs):
    shown = compare(*(find_run(name, str(runs)) for name in ("one", "two")))
    lines = [line.split() for line in shown.splitlines()]
    settings = lines[lines.index(["settings", "that", "differ"]) + 1 :]
    assert settings[:2] == [["training.lr", "0.001", "0.002"], []]
    measured = [line for line in shown.splitlines() if "(split policy steps restarts)" in line]
    assert [line.partition(" (")[0] for line in measured] == ["test fixed 4 1"]  # measured of both
    assert ["exact_accuracy", "0.5", "0.75", "+0.25"] in lines
    loss, exact = (lines.index([name, "by", "step"]) for name in ("train/loss", "eval/exact_accuracy"))
    assert lines[loss + 1 : exact] == [["2", "1.5", "1.5", "+0"], ["4", "0.001", "0.002", "+0.001"], []]
    assert lines[exact + 1 :] == [["4", "0.5", "0.75", "+0.25"]]


def test_unknown_and_damaged_runs_are_named(runs):
    with pytest.raises(UserError, match="2 runs named '-'"):
        find_run("-", str(runs))
    (runs / "one-a/history.csv").write_text("step,train/loss\nx,1\n")
    with pytest.raises(UserError, match="damaged"):
        compare(runs / "one-a", runs / "two-b")
