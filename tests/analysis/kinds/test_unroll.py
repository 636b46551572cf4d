"""`unroll`: what more supervision steps at test time buy."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_rel

from tests.analysis.conftest import Drawn
from trm.analysis.kinds.unroll import gains
from trm.analysis.stats import holm


def gain_of(place: str = "", **seeds: tuple[float, ...]) -> Any:
    """The gain of steps s1, s8, ...: their accuracies by seed."""
    return gains({place: {int(name[1:]): pd.Series(values) for name, values in seeds.items()}})[0]


def test_a_gain_is_claimed_only_if_established() -> None:
    found = gain_of(s1=(0.04, 0.05, 0.06), s8=(0.9, 0.91, 0.89), s32=(0.88, 0.89, 0.87))
    assert found.text.startswith("Exact accuracy is 85.0 ")
    assert found.text.endswith("higher with 8 supervision steps than with 1.")
    assert gain_of(s1=(0.9, 0.91, 0.89), s8=(0.5, 0.52, 0.49)).sign == -1
    equal = gain_of(s1=(0.9, 0.91, 0.89), s8=(0.5, 0.51, 0.49))
    assert "3 equal differences give no interval" in equal.text
    flat = gain_of("n 2", s1=(0.1, 0.5, 0.3), s8=(0.4, 0.2, 0.5))
    assert "no difference is established" in flat.text


def test_measured_numbers_of_steps_are_ticks(drawn: Drawn) -> None:
    drawing = drawn("unroll", kind="unroll")
    assert drawing.strength is not None
    assert list(drawing.canvas.axes[0].get_xticks()) == [1, 2, 4, 8, 16]
    below = [text.get_text() for found in drawing.canvas.legends for text in found.get_texts()]
    assert sorted(below) == ["16", "64", "steps in training"]  # nothing is written over the curves
    assert not drawing.canvas.axes[0].texts


def test_all_curves_of_a_figure_are_corrected_together() -> None:
    """Holm over all numbers of steps of all curves by scipy, then the best of each."""
    rng = np.random.default_rng(1)
    curves = {
        name: {8.0 * 2**k: pd.Series(0.8 + 0.004 * k + 0.01 * rng.normal(size=6)) for k in range(4)}
        for name in "abcde"
    }
    raw = {
        (name, at): ttest_rel(series[at], series[8.0]).pvalue
        for name, series in curves.items()
        for at in series
        if at > 8
    }
    adjusted = dict(zip(raw, holm(list(raw.values()))))
    found = gains(curves)
    assert [item.value for item in found] == sorted((item.value for item in found), reverse=True)
    for item in found:
        best = max(curves[item.place], key=lambda at: curves[item.place][at].mean())
        assert item.p == pytest.approx(adjusted[item.place, best])
    assert gains({"a": {8.0: curves["a"][8.0]}}) == []  # one number of steps gains nothing
