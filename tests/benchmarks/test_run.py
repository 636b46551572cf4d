"""`make bench`: its documents become one table; a benchmark that fails is counted, not hidden."""

import json

import pytest

from benchmarks import run
from benchmarks.run import ratios_of, table

STEP = {
    "results": [
        {
            "case": "small", "what": what, "precision": "bfloat16", "batch": 32, "ratio": ratio,
            "ratio_quartiles": [ratio - 0.1, ratio + 0.1], "target": target, "baseline": "compiled",
        }
        for what, ratio, target in (("evaluate", 1.7, None), ("train", 1.4, 1.5))
    ]
}  # fmt: skip
FIXED = {
    "allowed": 4.0,
    "commands": {
        "import torch": {"wall": 1.0, "wall_least": 1.0, "wall_most": 1.0},
        "train": {"wall": 1.2, "wall_least": 1.0, "wall_most": 3.0},
        "run": {"wall": 2.0, "wall_least": 1.6, "wall_most": 5.0},
    },
}
DATA = {"lines": {"augment": {"ratio": 40.0}, "generate": {}}}
PIPELINE = {
    "shipped study": {
        "parse": {"median": 1, "min": 1, "max": 1},
        "snakemake -n -q": {"median": 1.6, "min": 1, "max": 2},
    }
}
DOCUMENTS = {"step": STEP, "data": DATA, "fixed_cost": FIXED, "pipeline": PIPELINE}


def test_one_table():
    found = [ratio for name, written in DOCUMENTS.items() for ratio in ratios_of(name, written)]
    assert [(r.name, round(r.ratio, 2)) for r in found] == [
        ("small, 32 rows", 1.4),
        ("small, 32 rows", 1.7),
        ("augment", 40.0),
        ("fixed cost of a run", 2.0),
        ("snakemake -n -q, shipped study", 1.25),
    ]
    assert (found[3].low, found[3].high) == (0.8, 2.5)
    text = table(found)
    assert text.count("(missed)") == 1
    assert "1.30-1.50" in text


def test_options_of_every_benchmark_are_known_to_it():
    """Each compared benchmark takes what `make bench` and `make bench --quick` give it."""
    for name in run.COMPARED:
        source = (run.HERE / f"{name}.py").read_text()
        for quick in (False, True):
            given = [option for option in run.options(name, quick) if option.startswith("--")]
            assert all(f'"{option}"' in source for option in [*given, "--json"])


def test_a_failure_is_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "OUT", tmp_path)
    monkeypatch.setattr(run, "options", lambda name, quick: ["--points", "no number"])
    assert run.main(["pipeline"]) == 1
    assert "pipeline failed with exit code 2" in capsys.readouterr().err
    assert not (tmp_path / "bench.json").exists()


def test_unknown_name(capsys):
    with pytest.raises(SystemExit):
        run.main(["speed"])
    assert "speed" in capsys.readouterr().err


def test_ratios_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "OUT", tmp_path)
    monkeypatch.setattr(run, "run", lambda name, quick: DOCUMENTS[name])
    assert run.main(["--quick"]) == 0
    document = json.loads((tmp_path / "bench.json").read_text())
    assert document["quick"] is True
    assert len(document["ratios"]) == 5
