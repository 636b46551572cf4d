"""The script for a GPU, run whole at a tiny size on the CPU."""

import json
import sys

import pytest

from benchmarks import gpu
from trm.study.flops import step_flops


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gpu", "--tiny", *map(str, arguments)])
    return gpu.main()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # from within torch.compile
def test_the_table(tmp_path, monkeypatch):
    assert call(monkeypatch, "--seconds", 3600, "--json", tmp_path / "gpu.json") == 0
    document = json.loads((tmp_path / "gpu.json").read_text())
    rows = {row["case"]: row for row in document["rows"]}
    assert list(rows) == [f"{what}-{mixer}" for what, mixer in gpu.CASES]
    for row in rows.values():
        rivals = gpu.RIVALS[row["case"].split("-")[0]]
        assert all((row[name] or 0) > 0 for name in rivals)
        assert row["of_roofline"] > 0
    assert document["problems"] == {}


def test_a_row_that_does_not_run_leaves_the_others_alone(monkeypatch, capsys):
    monkeypatch.setattr(gpu, "CASES", [("train", "nothing"), ("evaluate", "mlp")])
    assert call(monkeypatch, "--seconds", 3600) == 1
    out = capsys.readouterr().out
    assert "train-nothing: 1 validation error" in out
    assert out.splitlines()[-1].startswith("evaluate-mlp")


def test_a_spent_budget_is_reported(monkeypatch, capsys):
    assert call(monkeypatch, "--seconds", "0") == 0
    assert capsys.readouterr().out.count("no time left") == len(gpu.CASES)


@pytest.mark.parametrize("mixer", ["mlp", "attention"])
def test_the_roofline_counts_the_model_s_flops(mixer):
    """Without memory traffic, a step's roofline is its FLOPs; the heads and the embedding are left out."""
    model = gpu.run_of(mixer, tiny=False).model
    seconds = gpu.roofline_seconds(model, 768, 1, True, (1.0, float("inf")))
    assert seconds == pytest.approx(768 * step_flops(model, gpu.CELLS, gpu.VOCAB), rel=0.01)
