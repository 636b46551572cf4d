"""Evaluations made by the training process are taken by the evaluation job, if they are of the same thing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.training.conftest import config
from trm.__main__ import main
from trm.backends import registry

EVALUATION = {"train_puzzles": 10, "traces": 1}


@pytest.fixture(scope="module")
def trained(dataset_folder, tmp_path_factory) -> Path:
    """A run that was evaluated as it ended."""
    folder = tmp_path_factory.mktemp("ahead")
    assert train(dataset_folder, folder, [EVALUATION]) == 0
    return folder


@pytest.fixture
def root(trained, tmp_path) -> Path:
    """A copy of it."""
    return shutil.copytree(trained, tmp_path / "root")


def train(dataset: Path, folder: Path, evaluations: list[dict]) -> int:
    run = config(training={"steps": 4}).model_dump_json()
    places = ["--dataset", str(dataset), "--out", str(folder / "run"), "--checkpoints", str(folder / "kept")]
    return main(
        ["train", "--config", run, *places, "--evaluations", json.dumps(evaluations), "--threads", "1"]
    )


def evaluate(root: Path, dataset: Path, out: Path, ahead: bool = True, **changes) -> dict:
    places = ["--run", str(root / "run"), "--dataset", str(dataset), "--out", str(out)]
    kept = ["--ahead", str(root / "kept")] if ahead else []
    text = json.dumps(EVALUATION | changes)
    assert main(["evaluate", *places, *kept, "--evaluation", text, "--threads", "1"]) == 0
    return json.loads(out.read_text())


def no_backend(*_) -> None:
    raise AssertionError("evaluated again")


def test_it_is_taken_and_is_what_the_job_would_have_measured(
    root, dataset_folder, tmp_path, monkeypatch, capsys
):
    theirs = evaluate(root, dataset_folder, tmp_path / "own.json", ahead=False)
    said = capsys.readouterr().out.partition("\n")[2]  # without the line on the backend
    monkeypatch.setattr(registry, "open_backend", no_backend)
    ours = evaluate(root, dataset_folder, tmp_path / "taken.json")
    assert [line.rsplit(",", 1)[0] for line in said.splitlines()] == [
        line.rsplit(",", 1)[0] for line in capsys.readouterr().out.splitlines()
    ]
    for document in (ours, theirs):
        del document["provenance"]
        for result in document["results"]:
            del result["seconds"]
    assert ours == theirs
    with pytest.raises(AssertionError, match="evaluated again"):  # who asks again wants it measured
        evaluate(root, dataset_folder, tmp_path / "again.json")


def test_other_settings_weights_or_data_are_measured(root, dataset_folder, tmp_path, monkeypatch):
    assert evaluate(root, dataset_folder, tmp_path / "a.json", train_puzzles=5)["results"][1]["puzzles"] == 5
    other = tmp_path / "other"
    other.symlink_to(dataset_folder)
    monkeypatch.setattr(registry, "open_backend", no_backend)
    with pytest.raises(AssertionError, match="evaluated again"):
        evaluate(root, other, tmp_path / "b.json")
    weights = root / "run" / "weights.safetensors"
    kept = weights.read_bytes()
    weights.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    with pytest.raises(AssertionError, match="evaluated again"):
        evaluate(root, dataset_folder, tmp_path / "c.json")
    weights.write_bytes(kept)
    evaluate(root, dataset_folder, tmp_path / "d.json")  # none of these used it up


def test_a_failure_is_left_to_the_evaluation_job(dataset_folder, tmp_path, caplog):
    assert train(dataset_folder, tmp_path, [{"weights": "average", "average": 3}]) == 0
    assert "the evaluation job will evaluate again" in caplog.text
    assert not (tmp_path / "kept" / "evaluated").exists()
