"""The script for a GPU, run whole at a tiny size on the CPU."""

import json
import sys

import pytest

from benchmarks import gpu


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gpu", *map(str, arguments)])
    return gpu.main()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # from within torch.compile
def test_jobs_and_table(tmp_path, monkeypatch, capsys):
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


def test_a_broken_job_leaves_the_others_alone(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(gpu, "jobs", lambda: ["train-nothing-eager", "ceilings"])
    assert call(monkeypatch, "--tiny", "--out", tmp_path) == 1
    out = capfd.readouterr().out
    assert "== train-nothing-eager: FAILED" in out
    assert "== ceilings: done" in out
    assert "failed: train-nothing-eager" in out


def test_an_unknown_job_is_refused(tmp_path, monkeypatch):
    with pytest.raises(SystemExit):
        call(monkeypatch, "--out", tmp_path, "--only", "nothing")
