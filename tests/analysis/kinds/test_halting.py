"""`halting`: mean steps."""

from __future__ import annotations

from tests.analysis.conftest import Drawn


def test_it_is_drawn(drawn: Drawn) -> None:
    drawing = drawn("mixer", kind="halting")
    assert [claim.metric for claim in drawing.claims] == ["mean_steps"] * 2 + ["halted"] * 2
