"""The script for a GPU, run whole at a tiny size on the CPU."""

import json
import sys

import pytest

from benchmarks import gpu


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gpu", "--tiny", *map(str, arguments)])
    return gpu.main()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # from within torch.compile
def test_every_row_of_the_table(tmp_path, monkeypatch, capsys):
    assert call(monkeypatch, "--json", tmp_path / "gpu.json") == 0
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert [(row["case"], row["against"]) for row in rows] == [(f"{w}-{m}", a) for m, w, a in gpu.CASES]
    assert all(row["ratio"] > 0 and 0 < row["of_ceiling"] < 2 for row in rows)
    assert capsys.readouterr().out.count("train-mlp") == 6


def test_a_row_that_does_not_run_leaves_the_others_alone(monkeypatch, capsys):
    monkeypatch.setattr(gpu, "CASES", [("nothing", "train", "eager"), ("mlp", "train", "uncaptured")])
    assert call(monkeypatch) == 1
    out = capsys.readouterr().out
    assert "case train-nothing, against eager: 1 validation error" in out
    assert out.splitlines()[-1].startswith("train-mlp")


def test_a_spent_budget_is_said(monkeypatch, capsys):
    assert call(monkeypatch, "--minutes", "0") == 0
    assert capsys.readouterr().out.count("no time left") == len(gpu.CASES)
