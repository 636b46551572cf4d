"""`curves`: ends of training, the gap to unseen puzzles."""

import pytest

from tests.analysis.conftest import Drawn
from trm.errors import UserError


def test_it_is_drawn(drawn: Drawn) -> None:
    drawing = drawn("data_size", kind="curves", metric="train/loss")
    assert len(drawing.canvas.axes) == 2
    drawn("compute", kind="curves", against="flops")
    with pytest.raises(UserError, match="no history of mixer has a column train/colour"):
        drawn("mixer", kind="curves", metric="train/colour")
