"""`study compare`: two runs side by side."""

import json

import pytest

from trm.errors import UserError
from trm.pipeline.compare import compare, find_run, text


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
    document = compare(*(find_run(name, str(runs)) for name in ("one", "two")))
    assert document["settings"] == {"training.lr": (1e-3, 2e-3)}
    assert list(document["results"]) == ["test fixed 4 1"]  # measured of both
    assert document["results"]["test fixed 4 1"]["exact_accuracy"] == (0.5, 0.75)
    assert document["curves"]["train/loss"] == [(2, 1.5, 1.5), (4, 1e-3, 2e-3)]
    assert document["curves"]["eval/exact_accuracy"] == [(4, 0.5, 0.75)]
    shown = text(json.loads(json.dumps(document)))
    assert "training.lr" in shown
    assert "+0.25" in shown


def test_unknown_and_damaged_runs_are_named(runs):
    with pytest.raises(UserError, match="2 runs named '-'"):
        find_run("-", str(runs))
    (runs / "one-a/history.csv").write_text("step,train/loss\nx,1\n")
    with pytest.raises(UserError, match="damaged"):
        compare(runs / "one-a", runs / "two-b")
