"""`steps`: puzzles solved step by step."""

from tests.analysis.conftest import Drawn
from trm.analysis.kinds.steps import pick, steps_sentence
from trm.analysis.traces import wrong


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


def test_each_puzzle_has_a_row_of_grids(drawn: Drawn) -> None:
    assert len(drawn("inference", kind="steps", puzzles=2).canvas.axes) == 2 * 7
