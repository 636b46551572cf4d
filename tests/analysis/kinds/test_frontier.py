"""`frontier`: what compute buys."""

from tests.analysis.conftest import Drawn


def test_they_are_drawn(drawn: Drawn) -> None:
    drawing = drawn("inference", kind="frontier")
    found = {item.subject: item for item in drawing.findings}
    assert len(found) >= 6  # five policies and the law of more supervision steps
    assert not found["any attempt right"].counts
    assert "the best attempt by halt logit" in drawing.answer


def test_unlike_grid_points_are_never_averaged(drawn: Drawn) -> None:
    drawing = drawn("unroll", kind="frontier")
    one = drawn("unroll", kind="frontier", where={"model.d_model": 16})
    assert drawing.findings[0].value == one.findings[0].value
    assert "d_model=16" in drawing.sentence or "d=16" in drawing.sentence
