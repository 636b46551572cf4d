"""The kept results can be drawn again from the repository alone."""

import json
from pathlib import Path

import pytest

from trm.analysis.redraw import redraw, results_page
from trm.errors import UserError

KEPT = Path(__file__).parents[2] / "docs" / "results"


def test_every_kept_result_is_drawn(tmp_path):
    names = {name for path in KEPT.rglob("figures.json") for name in json.loads(path.read_text())}
    drawn = redraw(KEPT, tmp_path)
    assert {path.stem for path in drawn} == names
    for path in drawn:
        assert path.read_bytes().startswith(b"%PDF")
        assert path.with_suffix(".png").stat().st_size > 5000
    sentence = json.loads((tmp_path / "real_sudoku_unroll.json").read_text())["sentence"]
    assert "[0.0, 0.4] and [64.8, 70.6])" in sentence
    sentence = json.loads((tmp_path / "hard_prediction.json").read_text())["sentence"]
    assert "together predict error 1.3 % [0.0, 36.6]" in sentence
    assert "12.6 %, inside the interval" in sentence
    facts = {path.stem: json.loads(path.with_suffix(".json").read_text()) for path in drawn}
    assert (KEPT.parent / "results.md").read_text() == results_page(KEPT, facts), (
        "write it anew: python -m trm.analysis.redraw docs/results --out figures --page docs/results.md"
    )


def test_kept_files_are_small():
    files = [path for path in KEPT.rglob("*") if path.is_file()]
    assert files
    assert sum(path.stat().st_size for path in files) < 4_500_000


def test_what_cannot_be_drawn(tmp_path):
    with pytest.raises(UserError, match=r"holds no figures\.json"):
        redraw(tmp_path, tmp_path / "out")
    folder = tmp_path / "kept"
    folder.mkdir()
    for source in (KEPT / "real_sudoku_laptop").glob("table*"):
        (folder / source.name).write_bytes(source.read_bytes())
    (folder / "figures.json").write_text('{"wrong": {"kind": "curves", "metrix": "x"}}')
    with pytest.raises(UserError, match="metrix"):
        redraw(tmp_path, tmp_path / "out")
