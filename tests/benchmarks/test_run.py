"""The frame of the benchmarks, and `make bench`, which makes one table of their documents."""

import json
import sys
from types import SimpleNamespace

import pytest

from benchmarks import fits, frame, pipeline, run
from benchmarks.frame import Ratio

FASTER = Ratio("train, bfloat16", "small, 32 rows", 1.4, 1.3, 1.5, 1.2, "plain PyTorch, compiled")
SLOWER = FASTER._replace(name="paper-mlp, 8 rows", ratio=1.1)


def test_a_limit_is_compared_with_the_range_of_seconds():
    found = Ratio.of_limit("a run", 4.0, frame.spread([1.6, 5.0, 2.0]))
    assert (found.ratio, found.low, found.high) == (2.0, 0.8, 2.5)


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
    frame.finish(rows, tmp_path / "out.json", [FASTER], wall=3)
    assert capsys.readouterr().out == "case   ratio  range  differ\nsmall  1.235  1-2.5\n"
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["rows"] == rows
    assert document["ratios"] == [FASTER._asdict()]
    assert document["wall"] == 3
    assert "commit" in document["provenance"]


def test_a_benchmark_from_its_options_to_its_document(tmp_path, monkeypatch):
    monkeypatch.setattr(fits, "CASES", {"constant": fits.CASES["constant"]})
    words = ["--simulations", "2", "--refits", "20", "--json", str(tmp_path / "out.json")]
    monkeypatch.setattr(sys, "argv", ["fits", *words])
    assert fits.main() in (0, 1)
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [(row["seeds"], row["intervals"]) for row in rows[:2]] == [(3, "corrected"), (3, "plain")]
    assert set(rows[0]["coverage"]) == {"E", "curve"}


def test_every_benchmark_knows_the_options_it_is_given():
    for name in run.MINUTES:
        source = (run.OUT.parent / f"{name}.py").read_text() + (run.OUT.parent / "frame.py").read_text()
        for quick in (False, True):
            given = [option for option in run.options(name, quick) if option.startswith("--")]
            assert all(f'"{option}"' in source for option in [*given, "--json"])


def test_the_command_that_is_timed_runs():
    """What `benchmarks.pipeline` times is text, which no other check reads."""
    assert frame.timed(pipeline.COMMANDS["parse"])[0] > 0


def test_a_failure_is_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "OUT", tmp_path)
    monkeypatch.setattr(run, "options", lambda name, quick: ["--points", "many"])
    assert run.main(["pipeline"]) == 1
    assert "pipeline failed with exit code 2" in capsys.readouterr().err
    assert not (tmp_path / "bench.json").exists()


def test_one_table_of_all_ratios(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "OUT", tmp_path)
    monkeypatch.setattr(run, "run", lambda name, quick: [FASTER, SLOWER] if name == "step" else [])
    assert run.main(["--quick"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "rows" in line]
    assert [line.endswith("missed") for line in lines] == [False, True]
    document = json.loads((tmp_path / "bench.json").read_text())
    assert document["quick"] is True
    assert len(document["ratios"]) == 2
