"""`curves`: ends of training, the gap to unseen puzzles."""

from __future__ import annotations

import pytest

from tests.analysis.conftest import Drawn
from trm.analysis.kinds.curves import gap_sentence
from trm.errors import UserError


def test_the_widest_gap_is_named() -> None:
    assert "50.0 points more often" in gap_sentence({"a": (0.9, 0.4), "b": (0.9, 0.8)})
    assert "than unseen ones, at most (for a)." in gap_sentence({"a": (0.9, 0.4), "b": (0.9, 0.8)})
    assert "No grid point solves more" in gap_sentence({"a": (0.4, 0.5)})


def test_it_is_drawn(drawn: Drawn) -> None:
    drawing = drawn("data_size", kind="curves", metrics=["train/loss"])
    assert len(drawing.canvas.axes) == 3
    drawn("compute", kind="curves", against="flops", gap=False)
    with pytest.raises(UserError, match="no history of mixer has a column train/colour"):
        drawn("mixer", kind="curves", metric="train/colour")
