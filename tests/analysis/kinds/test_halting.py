"""`halting`: mean steps."""

from __future__ import annotations

from tests.analysis.conftest import Drawn
from trm.analysis.kinds.halting import halting_sentence


def test_mean_steps_in_words() -> None:
    item = {"mean_steps": 3.0, "low": 2.5, "high": 3.5, "halted": 0.9, "most": 16.0, "exact_accuracy": 0.8}
    assert "3.0 [2.5, 3.5] of 16 steps on average; 90.0 %" in halting_sentence({"a": item})
    assert "with a, and after 5" in halting_sentence({"b": {**item, "mean_steps": 5.0}, "a": item})


def test_it_is_drawn(drawn: Drawn) -> None:
    assert len(drawn("mixer", kind="halting").numbers["halting"]) == 2
