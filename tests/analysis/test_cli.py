"""The commands as rules call them: results to table, fit, figure, report; bad input is one sentence and code 2."""

import json
from pathlib import Path

from trm.cli import main


def test_from_result_files_to_a_figure(study: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    # of the table's own experiment
    Path("fit.spec.json").write_text(json.dumps({"x": "train_flops", "form": "power_law"}))
    law = json.dumps({"kind": "law", "x": "train_flops", "fit": "power_law"})
    for words in (
        f"table --experiment {study}/specs/two_decades.json --out t.csv",
        "fit --table t.csv --spec fit.spec.json --out f.json",
    ):
        assert main(words.split()) == 0
    assert main(["plot", "--spec", law, "--table", "t.csv", "--fit", "f.json", "--out", "law.pdf"]) == 0
    assert "Error falls as training compute to the power −0.6" in capsys.readouterr().out
    files = "f.json fit.spec.json law.json law.pdf law.png t.csv t.csv.curves.csv t.csv.json"
    assert " ".join(sorted(path.name for path in tmp_path.iterdir())) == files


def test_a_folder_that_cannot_be_written_is_named(study: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "t.csv")
    assert main(["table", "--experiment", str(study / "specs/mixer.json"), "--out", out]) == 2
    assert "cannot be written" in capsys.readouterr().err
