"""`bins`: accuracy by the number of clues or the rating."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.analysis.conftest import saved
from trm.analysis.kinds.bins import bounds_of
from trm.analysis.tables import Table


@pytest.mark.parametrize(("low", "high", "words"), [(17, 17, "17"), (30, 31, "30–31"), (-1, -1, "unknown")])
def test_bounds_in_words(low: int, high: int, words: str) -> None:
    assert bounds_of({"from": low, "to": high}) == words


def counted(table: Table, by: str, starts: tuple[int, ...], less: int = 0) -> Table:
    """The table as though each run had solved `start - less` of 50 puzzles from each start."""
    cells = [{"from": low, "to": low + 1, "puzzles": 50, "correct": low - less} for low in starts]
    result = {"split": "test", "policy": "fixed", "steps": 8, "bins": {by: cells}}
    info = table.info | {"bins": {run: [result] for run in table.info["runs"]}}
    return replace(table, rows=table.rows.copy(), info=info)


def sentence(table: Table, by: str, root: Path) -> str:
    return saved({"mixer": table}, "mixer", root / "bins.pdf", kind="bins", by=by)[0].sentence


def test_a_rating_has_its_tasks_name(tables: dict[str, Table], tmp_path: Path) -> None:
    table = counted(tables["mixer"], "rating", (20, 22))
    found = "20–21 is 40.0 % [27.6, 53.8]"
    assert f"exact accuracy with difficulty rating {found}" in sentence(table, "rating", tmp_path)
    table.rows["data.task"] = "maze"
    assert f"exact accuracy with length of the shortest path {found}" in sentence(table, "rating", tmp_path)


def test_clues_are_drawn(tables: dict[str, Table], tmp_path: Path) -> None:
    shown = sentence(counted(tables["mixer"], "clues", (20, 22, 24), 10), "clues", tmp_path)
    assert "exact accuracy with 20–21 clues is 20.0 % [11.2, 33.0]." in shown
    assert "exact accuracy with 24–25 clues is 28.0 % [17.5, 41.7]." in shown
