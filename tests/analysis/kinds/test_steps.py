"""`steps`: puzzles solved step by step."""

import re
from itertools import combinations

from tests.analysis.conftest import Drawn, figure
from trm.analysis.drawing import styled
from trm.analysis.kinds import draw
from trm.analysis.kinds.steps import pick, steps_sentence
from trm.analysis.tables import Table
from trm.analysis.traces import interesting, wrong


def test_steps_shown_are_first_last_and_the_most_changing() -> None:
    trace = {"answer": [2, 3, 4], "steps": [[3, 2, 2], [3, 2, 2], [2, 3, 2], [2, 3, 2], [2, 3, 4]]}
    errors = wrong(trace)
    assert errors.sum(axis=1).tolist() == [3, 3, 1, 1, 0]
    assert pick(errors, 3) == [0, 2, 4]
    assert pick(errors, 9) == [0, 1, 2, 3, 4]


def test_solved_and_lost_puzzles_are_counted() -> None:
    solved = "Of 2 puzzles traced, 1 is solved, on average after 2 steps; "
    lost = "1 was right at an earlier step and lost again."
    assert steps_sentence([[3, 0], [0, 2]]) == solved + lost


def test_the_models_are_named_and_no_puzzle_is_shown_twice(tables: dict[str, Table]) -> None:
    """Every run has the same puzzles."""
    table = tables["model_size"]
    first = table.info["traces"][:3]
    runs = list(dict.fromkeys(table.rows["run"]))
    traces = [{**trace, "run": run} for trace in first for run in runs]
    with styled():
        figure_of = draw(
            figure(kind="steps"), [Table(table.rows, table.curves, {**table.info, "traces": traces})], []
        )
    named = [axes for axes in figure_of.canvas.axes if axes.get_title("left")]
    assert len(named) == 3
    assert all(re.fullmatch(r"d=\d+, seed \d\n", axes.get_title("left")) for axes in named)
    shown = [[text.get_text() for text in axes.texts] for axes in named]
    assert all(one != two for one, two in combinations(shown, 2))
    questions = [trace["question"] for trace in interesting(traces, 5)]
    assert [len({str(item) for item in questions[:most]}) for most in (3, 5)] == [
        3,
        3,
    ]  # then other models' answers


def test_each_puzzle_has_a_row_of_grids(drawn: Drawn) -> None:
    assert len(drawn("inference", kind="steps", puzzles=2).canvas.axes) == 2 * 7
