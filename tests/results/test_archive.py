"""`trm results`: to a bucket and back, only what differs, whole runs last."""

from pathlib import Path

import pytest

from tests.storage.conftest import BUCKET
from trm.cli import main
from trm.results.archive import differing, open_place, send


@pytest.fixture
def results(tmp_path) -> Path:
    """Results of two runs, a table, a report; and what is no result."""
    root = tmp_path / "here/results"
    for name, text in {
        "runs/a-1/training.json": "{}",
        "runs/a-1/weights.safetensors": "weights",
        "runs/b-2/training.json": "{}",
        "tables/data_size-1.csv": "x\n1\n",
        "report.html": "<html>",
        "report.json": "{}",
        "runs/a-1/.training.json.77": "half-written",
        "checkpoints/a-1/step-1/state": "state",
        "sources/pool/puzzles.npz": "puzzles",
        "partial/report.json": "{}",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (tmp_path / "private").mkdir()
    (tmp_path / "private/key").write_text("the user's own")
    (root / "runs/b-2/key").symlink_to(tmp_path / "private/key")
    (root / "plots").symlink_to(tmp_path / "private")
    return root


SIX = ["report.html", "report.json", "runs/a-1/training.json", "runs/a-1/weights.safetensors"]
SIX += ["runs/b-2/training.json", "tables/data_size-1.csv"]


def test_an_archive_can_be_collected_elsewhere(results, gcs, tmp_path, capsys):
    place = f"gs://{BUCKET}/{tmp_path.name}"
    words = ["results", "archive", place, "--root", str(results)]
    assert main([*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "would copy 6 files" in said
    assert said.count("is a link out of") == 2
    assert not list(gcs.list())
    assert main(words) == 0
    assert sorted(info.name for info in gcs.list()) == [f"results/{name}" for name in SIX]
    capsys.readouterr()
    assert main(words) == 0
    assert "copied 0 files" in capsys.readouterr().out  # what is there already is not sent again

    (results / "runs/a-1/weights.safetensors").write_text("changed")  # as long as before
    assert main(words) == 0
    assert "copied 1 file," in capsys.readouterr().out
    there = tmp_path / "there/results"
    assert main(["results", "collect", place, "--root", str(there)]) == 0
    assert sorted(p.relative_to(there).as_posix() for p in there.rglob("*") if p.is_file()) == SIX
    assert (there / "runs/a-1/weights.safetensors").read_text() == "changed"
    assert main(["results", "collect", f"{place}/nothing", "--root", str(there)]) == 2
    assert "there are no results at" in capsys.readouterr().err


def test_one_run_with_its_checkpoints_and_data(results, tmp_path):
    source, target = open_place(str(results)), open_place(str(tmp_path / "archive"))
    parcels, _ = differing(source, target, ("runs", "sources", "checkpoints"), {"a-1"})
    names = [parcel.name for parcel in parcels]
    assert "runs/b-2/training.json" not in names
    assert "checkpoints/a-1/step-1/state" in names
    assert names[-1] == "runs/a-1/training.json"  # the sign of a whole run goes last
    send(source, target, parcels)
    assert (tmp_path / "archive/results/checkpoints/a-1/step-1/state").read_text() == "state"
