"""`unroll`: what more supervision steps at test time buy."""

from typing import Any

import pandas as pd
import pytest

from tests.analysis.conftest import Drawn
from trm.analysis.kinds.unroll import gain
from trm.errors import UserError


def gain_of(place: str = "", **seeds: tuple[float, ...]) -> Any:
    """The gain of steps s1, s8, ...: their accuracies by seed."""
    return gain({int(name[1:]): pd.Series(values) for name, values in seeds.items()}, place, 1000)


def test_a_gain_is_claimed_only_if_established() -> None:
    found = gain_of(s1=(0.04, 0.05, 0.06), s8=(0.9, 0.91, 0.89), s32=(0.88, 0.89, 0.87)).text()
    assert found.startswith("exact accuracy rises from 5.0 % with 1 supervision step to 90.0 % with 8")
    assert found.endswith("points), and 88.0 % with 32")
    worse = gain_of(s1=(0.9, 0.91, 0.89), s8=(0.5, 0.51, 0.49))
    assert worse.text().count("with 8 supervision steps") == 1
    assert not worse.more
    flat = gain_of("n 2", s1=(0.1, 0.5, 0.3), s8=(0.4, 0.2, 0.5))
    assert "no difference established" in flat.text()


def test_one_seed_has_the_interval_of_its_test_set() -> None:
    found = gain_of(s1=(0.0,), s128=(0.68,)).text()
    both = "0.0 % with 1 supervision step and 68.0 % with 128 supervision steps (one run; binomial"
    assert both in found
    assert "1,000 test puzzles: [0.0, 0.4] and [65.0, 70.8])" in found


def test_it_is_drawn(drawn: Drawn) -> None:
    drawing = drawn("unroll", kind="unroll")
    assert drawing.strength is not None
    assert list(drawing.canvas.axes[0].get_xticks()) == [1, 2, 4, 8, 16]
    with pytest.raises(UserError, match=r"set evaluation\.unroll"):
        drawn("mixer", kind="unroll")
