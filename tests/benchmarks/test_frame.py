"""The frame of the benchmarks."""

import json
import sys
from types import SimpleNamespace

import pytest

from benchmarks import fits, frame, pipeline


def test_calls_take_turns():
    order, quiet = [], SimpleNamespace(synchronize=lambda: None, name="cpu")
    calls = {name: lambda name=name: order.append(name) for name in ("ours", "eager")}
    found = frame.in_turns(calls, 2, quiet)
    assert order[:6] == ["ours"] * 3 + ["eager"] * 3
    assert found["ours"]["ratio"] == 1
    assert len(found["eager"]["ratio_quartiles"]) == 2


def test_a_failed_command_ends_the_benchmark_with_its_errors():
    with pytest.raises(SystemExit, match="out of order"):
        frame.timed([sys.executable, "-c", "raise SystemExit('out of order')"])
    wall, cpu = frame.timed([sys.executable, "-c", "pass"])
    assert min(wall, cpu) > 0


def test_rows_become_a_table_and_a_document(tmp_path, capsys):
    rows = [{"case": "small", "ratio": 1.23456, "range": [1.0, 2.5], "differ": None}]
    frame.finish(rows, tmp_path / "out.json", wall=3)
    assert capsys.readouterr().out == "case   ratio  range  differ\nsmall  1.235  1-2.5\n"
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["rows"] == rows
    assert document["wall"] == 3
    assert "commit" in document["provenance"]


def test_a_benchmark_from_its_options_to_its_document(tmp_path, monkeypatch):
    monkeypatch.setattr(fits, "CASES", {"constant": fits.CASES["constant"]})
    words = ["--simulations", "2", "--refits", "20", "--json", str(tmp_path / "out.json")]
    monkeypatch.setattr(sys, "argv", ["fits", *words])
    assert fits.main() in (0, 1)
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["seeds"] for row in rows] == [3, 5]
    assert set(rows[0]["coverage"]) == {"E", "curve"}


def test_the_commands_that_are_timed_run(tmp_path):
    """What `benchmarks.pipeline` times is text, which no other check reads; its study of many points is made of the
    shipped one, whose figures name experiments that it does not have."""
    pipeline.project(tmp_path, points=2)
    for command in pipeline.COMMANDS.values():
        assert frame.timed(command, tmp_path)[0] > 0
