"""The commands as rules call them: results to table, fit, figure, report; bad input is one sentence and code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trm.cli import main


def test_from_result_files_to_a_figure(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, fit, figure = (str(tmp_path / name) for name in ("t.csv", "f.json", "law.pdf"))
    spec = tmp_path / "fit.spec.json"
    spec.write_text(json.dumps({"x": "train_flops", "form": "power_law"}))  # of the table's own experiment
    law = json.dumps({"kind": "law", "x": "train_flops", "fit": "power_law"})
    assert main(["table", "--experiment", str(study / "specs/two_decades.json"), "--out", table]) == 0
    assert main(["fit", "--table", table, "--spec", str(spec), "--out", fit]) == 0
    assert main(["plot", "--spec", law, "--table", table, "--fit", fit, "--out", figure]) == 0
    assert "Error falls as a power law" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "f.json",
        "fit.spec.json",
        "law.json",
        "law.pdf",
        "law.png",
        "t.csv",
        "t.csv.curves.csv",
        "t.csv.json",
    ]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            ["table", "--experiment", "nowhere.json", "--out", "t.csv"],
            "--experiment nowhere.json cannot be read",
        ),
        (["table", "--experiment", "{", "--out", "t.csv"], "--experiment is not JSON"),
        (["table", "--experiment", '{"name": "a"}', "--out", "t.csv"], "--experiment: scale: is required"),
        (["fit", "--table", "none.csv", "--spec", "{}", "--out", "f.json"], "none.csv.json does not exist"),
        (
            ["fit", "--table", "none.csv", "--spec", '{"x": "colour"}', "--out", "f.json"],
            "unknown column 'colour'",
        ),
        (["plot", "--spec", '{"kind": "halting"}', "--table", "t.csv", "--out", "a.svg"], "must end in .pdf"),
        (["report", "--spec", '{"study": "a"}', "--out", "r.html"], "--spec: scale: is required"),
        (["plot", "--spec", '{"kind": "lav"}', "--table", "t", "--out", "p.pdf"], "did you mean 'law'?"),
    ],
)
def test_bad_input_is_one_sentence(
    args: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "t.csv")
    assert main(["table", "--experiment", str(study / "specs/mixer.json"), "--out", out]) == 2
    assert "cannot be written" in capsys.readouterr().err
