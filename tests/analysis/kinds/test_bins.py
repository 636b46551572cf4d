"""`bins`: accuracy by the number of clues or the rating."""

from dataclasses import replace

import pytest

from tests.analysis.conftest import figure
from trm.analysis.drawing import styled
from trm.analysis.kinds import draw
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


def sentence(table: Table, by: str) -> str:
    with styled():
        return draw(figure(kind="bins", by=by), [table], []).sentence


def test_a_rating_has_its_tasks_name(tables: dict[str, Table]) -> None:
    table = counted(tables["mixer"], "rating", (20, 22))
    found = "20–21 is 40.0 % [27.6, 53.8]"
    assert f"exact accuracy with difficulty rating {found}" in sentence(table, "rating")
    table.rows["data.task"] = "maze"
    assert f"exact accuracy with length of the shortest path {found}" in sentence(table, "rating")


def test_clues_are_drawn(tables: dict[str, Table]) -> None:
    shown = sentence(counted(tables["mixer"], "clues", (20, 22, 24), 10), "clues")
    assert "exact accuracy with 20–21 clues is 20.0 % [11.2, 33.0]." in shown
    assert "exact accuracy with 24–25 clues is 28.0 % [17.5, 41.7]." in shown
