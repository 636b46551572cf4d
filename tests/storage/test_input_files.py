"""Puzzle files in a bucket: named by one key with its checksum, in the plan, and read by the job."""

import shutil

import pytest

from tests.pipeline.conftest import planned
from tests.shell import ROOT
from trm.cli import main
from trm.pipeline import plan
from trm.pipeline.catalogue import source_name
from trm.pipeline.project import open_project

HEADER = "source,question,answer,rating\n"
SOLVED = "".join(str((3 * row + row // 3 + column) % 9 + 1) for row in range(9) for column in range(9))


@pytest.fixture
def named(gcs, tmp_path, monkeypatch, capsys) -> str:
    """A file in the bucket, as `trm data checksum` names it."""
    monkeypatch.setenv("TRM_CACHE", str(tmp_path / "cache"))
    gcs.put_bytes("puzzles.csv", f"{HEADER}made,{SOLVED[:78]}...,{SOLVED},0\n".encode())
    assert main(["data", "checksum", gcs.url("puzzles.csv")]) == 0
    return capsys.readouterr().out.strip()


def test_one_key_names_a_file_and_its_checksum(named, gcs, tmp_path, monkeypatch, capsys):
    uri, _, checksum = named.partition("#sha256=")
    study = ROOT / "config/experiments.yaml"
    project = open_project(
        {"study": str(study), "scale": "tpu", "experiments": "real_sudoku", "sudoku_csv": named}
    )
    run = project.study.experiment("real_sudoku").points[0].runs[0]
    assert (run.config.data.files, run.config.data.sha256) == ((uri,), (checksum,))
    assert f"Reads {uri} (SHA-256 {checksum[:12]}...)" in plan.text(planned(project))

    source = source_name(run.config.data)  # what the rule hands to the job
    config, files = project.catalogue.source_json(source), project.catalogue.source_inputs(source)
    shutil.rmtree(tmp_path / "cache")  # the job runs on another machine
    monkeypatch.chdir(tmp_path)
    assert main(["data", "source", "--config", config, "--files", files, "--out", "pool"]) == 0
    assert checksum in (tmp_path / "pool/manifest.json").read_text()

    gcs.put_bytes("puzzles.csv", HEADER.encode())
    shutil.rmtree(tmp_path / "cache")
    assert main(["data", "source", "--config", config, "--files", files, "--out", "other"]) == 2
    assert f"{uri} has the SHA-256 " in capsys.readouterr().err


def test_a_file_that_is_not_there_is_one_sentence(gcs, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TRM_CACHE", str(tmp_path / "cache"))
    assert main(["data", "checksum", gcs.url("none.csv")]) == 2
    assert gcs.url("none.csv") in capsys.readouterr().err
    assert main(["data", "checksum", "here.csv"]) == 2
    assert "here.csv is a local file" in capsys.readouterr().err
