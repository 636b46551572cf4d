"""`unroll`: what more supervision steps at test time buy."""

from __future__ import annotations

import pytest

from tests.analysis.conftest import Drawn
from trm.analysis.claims import claim
from trm.analysis.kinds.unroll import unroll_sentence
from trm.analysis.stats import Mean
from trm.errors import UserError

ONE, TEN = Mean(0.05, 0.0, 0.1, 3), Mean(0.9, 0.85, 0.95, 3)


def test_a_gain_is_claimed_only_if_established() -> None:
    text = unroll_sentence(
        "n 2", {1: ONE, 8: TEN, 32: TEN}, 8, claim("exact_accuracy", "8", "1", Mean(0.85, 0.8, 0.9, 3), 0.01)
    )
    assert text.startswith("n 2: accuracy rises from 5.0 % [0.0, 10.0] at 1 step to 90.0 % [85.0, 95.0] at 8")
    assert "(+85.0 [80.0, 90.0] points), and is 90.0 % [85.0, 95.0] at 32." in text
    assert "no gain from more supervision steps is established" in unroll_sentence(
        "", {1: ONE, 8: TEN}, 8, None
    )


def test_one_seed_has_the_interval_of_its_test_set() -> None:
    low, high = Mean(0.0, None, None, 1), Mean(0.68, None, None, 1)
    text = unroll_sentence("", {1: low, 128: high}, 128, None, 1000)
    assert text.startswith(
        "In the only run, accuracy rises from 0.0 % [0.0, 0.4] at 1 step to 68.0 % [65.0, 70.8]"
    )
    near = Mean(0.001, None, None, 1)
    assert "no gain" in unroll_sentence("", {1: low, 128: near}, 128, None, 1000)


def test_it_is_drawn(drawn: Drawn) -> None:
    drawing = drawn("unroll", kind="unroll")
    assert drawing.strength is not None
    assert list(drawing.canvas.axes[0].get_xticks()) == [1, 2, 4, 8, 16]
    with pytest.raises(UserError, match=r"set evaluation\.unroll"):
        drawn("mixer", kind="unroll")
