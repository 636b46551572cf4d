"""The script for a GPU, run whole at a tiny size on the CPU."""

import json
import sys

import pytest

from benchmarks import gpu
from tests.training.conftest import config, train
from tests.training.puzzles import write_dataset


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gpu", *map(str, arguments)])
    return gpu.main()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # from within torch.compile
def test_jobs_table_and_figure(tmp_path, monkeypatch, capsys):
    jobs = ["ceilings", "checks", "train-mlp-compiled", "evaluate-mlp-eager"]
    for job in jobs:
        assert call(monkeypatch, "--tiny", "--out", tmp_path, "--job", job) == 0
    # what is done is not done again: the rest only collects
    monkeypatch.setattr(gpu, "jobs", lambda: jobs)
    assert call(monkeypatch, "--tiny", "--out", tmp_path) == 0
    out = capsys.readouterr().out
    assert "== " not in out
    for job in jobs:
        assert job in out
    found = json.loads((tmp_path / "gpu.json").read_text())
    trained = found["train-mlp-compiled"]["result"]
    assert trained["ratio"] > 0
    assert 0 < trained["share"] < 2
    assert found["evaluate-mlp-eager"]["result"]["full_test_minutes"] > 0
    assert (tmp_path / "gpu.png").stat().st_size > 5000


def test_a_broken_job_costs_itself_only(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(gpu, "jobs", lambda: ["ceilings"])
    arguments = ["--tiny", "--out", tmp_path, "--run", tmp_path / "none", "--dataset", tmp_path / "none"]
    assert call(monkeypatch, *arguments, "--only", "confident", "ceilings") == 1
    out = capfd.readouterr().out
    assert "== confident: FAILED" in out
    assert "== ceilings: done" in out
    assert "failed: confident" in out


def test_stopping_when_confident(tmp_path):
    dataset = write_dataset(tmp_path / "data", 40, 8, 20)
    train(config({"halt_max_steps": 3}, {"steps": 2}), dataset, tmp_path / "root")
    found = gpu.confident(tmp_path / "root" / "run", dataset, 12)
    assert found["puzzles"] == 12
    assert found["ratio"] > 0


def test_time_is_up(tmp_path, monkeypatch, capsys):
    assert call(monkeypatch, "--tiny", "--out", tmp_path, "--minutes", "-1") == gpu.UNFINISHED
    assert "left for the next call: ceilings" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        call(monkeypatch, "--out", tmp_path, "--only", "nothing")
