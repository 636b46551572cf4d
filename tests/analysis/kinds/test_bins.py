"""`bins`: accuracy by the number of clues or the rating."""

from __future__ import annotations

import pytest

from tests.analysis.conftest import Drawn
from trm.analysis.kinds.bins import bounds_of
from trm.analysis.tables import Table
from trm.errors import UserError


def test_bounds_in_words() -> None:
    assert bounds_of({"from": 17, "to": 17}) == "17"
    assert bounds_of({"from": 30, "to": 31}) == "30–31"
    assert bounds_of({"from": -1, "to": -1}) == "unknown"


def test_a_rating_has_its_tasks_name(drawn: Drawn, tables: dict[str, Table]) -> None:
    table = tables["mixer"]
    cells = [{"from": low, "to": low + 1, "puzzles": 50, "correct": low} for low in (20, 22)]
    result = {"split": "test", "policy": "fixed", "steps": 8, "bins": {"rating": cells}}
    table.info["bins"] = {run: [result] for run in table.info["runs"]}
    task = table.rows["data.task"].copy()
    try:
        sudoku = drawn("mixer", kind="bins", by="rating")
        table.rows["data.task"] = "maze"
        maze = drawn("mixer", kind="bins", by="rating")
    finally:
        table.info["bins"], table.rows["data.task"] = {}, task
    assert "exact accuracy is 40.0 % [27.6, 53.8] (difficulty rating 20–21)" in sudoku.sentence
    assert "40.0 % [27.6, 53.8] (length of the shortest path 20–21)" in maze.sentence


def test_it_is_drawn_where_puzzles_were_counted(drawn: Drawn, tables: dict[str, Table]) -> None:
    with pytest.raises(UserError, match="counted its puzzles by clues"):
        drawn("mixer", kind="bins")
    info = tables["mixer"].info
    cells = [{"from": low, "to": low + 1, "puzzles": 50, "correct": low - 10} for low in (20, 22, 24)]
    result = {"split": "test", "policy": "fixed", "steps": 8, "bins": {"clues": cells}}
    info["bins"] = {run: [result] for run in info["runs"]}
    try:
        drawing = drawn("mixer", kind="bins")
    finally:
        info["bins"] = {}
    wanted = "the exact accuracy is 20.0 % [11.2, 33.0] (20–21 clues) and 28.0 % [17.5, 41.7] (24–25 clues)."
    assert wanted in drawing.sentence
