"""`bins`: accuracy by the number of clues or the rating."""

from dataclasses import replace

import pytest

from tests.analysis.conftest import Drawn
from trm.analysis.kinds.bins import bounds_of
from trm.analysis.tables import Table
from trm.errors import UserError


@pytest.mark.parametrize(("low", "high", "words"), [(17, 17, "17"), (30, 31, "30–31"), (-1, -1, "unknown")])
def test_bounds_in_words(low: int, high: int, words: str) -> None:
    assert bounds_of({"from": low, "to": high}) == words


def counted(table: Table, by: str, starts: tuple[int, ...], less: int = 0) -> Table:
    """The table as though each run had solved `start - less` of 50 puzzles from each start."""
    cells = [{"from": low, "to": low + 1, "puzzles": 50, "correct": low - less} for low in starts]
    result = {"split": "test", "policy": "fixed", "steps": 8, "bins": {by: cells}}
    info = table.info | {"bins": {run: [result] for run in table.info["runs"]}}
    return replace(table, rows=table.rows.copy(), info=info)


def test_a_rating_has_its_tasks_name(drawn: Drawn, tables: dict[str, Table], monkeypatch) -> None:
    monkeypatch.setitem(tables, "mixer", counted(tables["mixer"], "rating", (20, 22)))
    sudoku = drawn("mixer", kind="bins", by="rating")
    tables["mixer"].rows["data.task"] = "maze"
    maze = drawn("mixer", kind="bins", by="rating")
    assert "exact accuracy with difficulty rating 20–21 is 40.0 % [27.6, 53.8]" in sudoku.sentence
    assert "exact accuracy with length of the shortest path 20–21 is 40.0 % [27.6, 53.8]" in maze.sentence


def test_it_is_drawn_where_puzzles_were_counted(drawn: Drawn, tables: dict[str, Table], monkeypatch) -> None:
    with pytest.raises(UserError, match="counted its puzzles by clues"):
        drawn("mixer", kind="bins")
    monkeypatch.setitem(tables, "mixer", counted(tables["mixer"], "clues", (20, 22, 24), 10))
    sentence = drawn("mixer", kind="bins").sentence
    assert "exact accuracy with 20–21 clues is 20.0 % [11.2, 33.0]." in sentence
    assert "exact accuracy with 24–25 clues is 28.0 % [17.5, 41.7]." in sentence
