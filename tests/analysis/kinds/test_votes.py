"""The figure of ARC: tasks solved by vote."""

from dataclasses import replace

import pandas as pd

from tests.analysis.conftest import figure
from trm.analysis.drawing import styled
from trm.analysis.kinds import draw
from trm.analysis.tables import Table

TASKS = ("recolour-5", "flip-6", "transpose-7", "fill-8", "move-9")


def voted(table: Table, solved: dict[str, tuple[float, ...]], tasks: list | None = None) -> Table:
    """The table as though its runs were of ARC; solved: way -> 1 or 0 for each task."""
    rows = table.rows[table.rows["primary"]].assign(puzzles=5)
    parts = [
        rows.assign(policy=way, exact_accuracy=sum(values) / 5, restarts=1 if way == "fixed" else 8)
        for way, values in solved.items()
    ]
    each = tasks or [
        {"task": name, "inputs": 1} | {way: solved[way][i] for way in ("vote_first", "vote")}
        for i, name in enumerate(TASKS)
    ]
    info = {**table.info, "tasks": dict.fromkeys(rows["run"], each)}
    return replace(table, rows=pd.concat(parts, ignore_index=True), info=info)


def drawing_of(*given):
    with styled():
        return draw(figure(kind="votes"), [voted(*given)], [])


def test_the_figure_says_which_tasks_two_attempts_solve(tables):
    solved = {"fixed": (1, 0, 0, 0, 0), "vote_first": (1, 1, 0, 0, 0), "vote": (1, 1, 1, 1, 0)}
    drawing = drawing_of(tables["mixer"], solved)
    shown = {finding.subject: round(finding.value, 6) for finding in drawing.findings}
    assert shown == {"no vote: the task as it is": 0.2, "vote, one attempt": 0.4, "vote, two attempts": 0.8}
    sentence = "Every seed solves recolour-5, flip-6, transpose-7 and fill-8. No seed solves move-9."
    assert sentence in drawing.sentence
    assert "Each task in 8 versions" in drawing.caption
    flipped = {**solved, "vote": (0, 1, 1, 1, 1)}
    assert "No seed solves recolour-5" in drawing_of(tables["mixer"], flipped).sentence


FEW = {"fixed": (0,) * 5, "vote_first": (0,) * 5, "vote": (1, 0, 0, 0, 0)}


def test_many_tasks_are_not_drawn_one_by_one(tables):
    many = [{"task": str(i), "inputs": 1, "vote_first": 0.0, "vote": 1.0} for i in range(400)]
    drawing = drawing_of(tables["mixer"], FEW, many)
    assert len(drawing.canvas.axes) == 1
    assert "Every seed" not in drawing.sentence


def test_many_tasks_of_families_are_drawn_by_family(tables):
    many = [{"task": f"{('fill', 'mirror')[i % 2]}-{i}", "inputs": 1, "vote_first": 0.0} for i in range(40)]
    many = [task | {"vote": float(i % 4 < 2 or i % 2)} for i, task in enumerate(many)]
    drawing = drawing_of(tables["mixer"], FEW, many)
    assert len(drawing.canvas.axes) == 2
    assert "By family: fill 50.0 %, mirror 100.0 %." in drawing.sentence
    assert drawing.canvas.axes[1].get_xlabel() == "Tasks of it solved (%)"
