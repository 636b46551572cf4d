"""Intervals, paired differences, frontiers, batch size; numbers in words."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from trm.analysis import words
from trm.analysis.stats import Mean, detectable, frontier, holm, mean, pooled_log_intervals, share, wilson


def test_mean_is_students() -> None:
    found = mean([0.1, 0.2, 0.4, float("nan")])
    low, high = stats.t.interval(0.95, 2, np.mean([0.1, 0.2, 0.4]), stats.sem([0.1, 0.2, 0.4]))
    assert (found.bounds, found.n) == (pytest.approx((low, high)), 3)
    assert mean([0.3]).bounds is None
    assert mean([]).n == 0
    assert mean([1.0, 1.1, 1.05]).sign == 1
    assert mean([-1.0, 1.0, 0.1]).sign == 0


@pytest.mark.parametrize("correct", [0, 37, 50])
def test_wilson_agrees_with_scipy(correct: int) -> None:
    expected = stats.binomtest(correct, 50).proportion_ci(method="wilson")
    assert wilson(correct, 50) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_pooling_steadies_the_intervals() -> None:
    values = np.exp(np.array([0.0, 0.1, 1.0, 1.0, 2.0, 2.2]))
    found = pooled_log_intervals(values, np.repeat([1, 2, 3], 2))
    widths = [np.log(item.bounds[1] / item.bounds[0]) for item in found.values()]
    assert max(widths) == pytest.approx(min(widths))
    assert pooled_log_intervals(values, np.arange(6))[0].bounds is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1)), min_size=1, max_size=20))
def test_the_frontier_is_what_nothing_dominates(points: list[tuple[float, float]]) -> None:
    cost, value = (np.array(column) for column in zip(*points))
    kept = frontier(cost, value, tolerance=0)
    assert list(cost[kept]) == sorted(cost[kept])
    for i in range(len(points)):
        beaten = ((cost <= cost[i]) & (value >= value[i]) & ((cost < cost[i]) | (value > value[i]))).any()
        twin = any(cost[j] == cost[i] and value[j] == value[i] for j in kept)
        assert beaten != twin


NUMBERS = [
    ("number", (0.01234,), "0.0123"),
    ("number", (9.999e6, 2), "10⁷"),
    ("number", (-0.5,), "−0.5"),
    ("number", (0,), "0"),
    ("number", (float("nan"),), "–"),
    ("percent", (0.0042, (0.001, 0.02)), "0.42 % [0.10, 2.00]"),
    ("percent", (0.0, (0.0, 0.0)), "0.0 %"),
    ("points", (0.031, (-0.01, 0.052)), "+3.1 [−1.0, 5.2] points"),
    ("points", (-0.0001,), "0.0 points"),
    ("measured", ("wall_seconds", 12.345), "12 s"),
    ("changed", ("peak_memory_bytes", -(2.0**20)), "−1 MiB"),
    ("compact", (1000,), "1k"),
    ("compact", (2.5e6,), "2.5M"),
    ("compact", (3e15,), "3P"),
    ("compact", (0.99999e12,), "1T"),  # the prefix changes where three digits do
    ("compact", (999.0e9,), "999G"),
    ("estimate", (2.0e-4, (1.0e-4, 2.5e-4)), "2 × 10⁻⁴ [10⁻⁴, 2.5 × 10⁻⁴]"),
    ("setting_in_words", ("model.layers", 1), "1 layer"),
    ("value_name", ("adam_atan2",), "Adam-atan2"),
    ("value_name", (50, "data.augmentations"), "51"),  # versions of each puzzle: itself and its copies
    ("value_name", (True,), "on"),
    ("value_name", (None,), "none"),
    ("duration", (0.01,), "36 s"),
    ("duration", (0.5,), "30 min"),
    ("duration", (100,), "4.2 d"),
    ("memory", (2**20,), "1 MiB"),
    ("count", (2, "criterion", "criteria"), "2 criteria"),
    ("point_name", ("h_cycles=1, l_cycles=2",), "T=1, n=2"),
    ("point_name", ("fixed, FLOPs of (1,1) to (2,2)",), "fixed, FLOPs of (1,1) to (2,2)"),
    ("signed", (-0.5,), "−0.5"),
    ("signed", (2.0,), "+2"),
]


@pytest.mark.parametrize(("function", "values", "expected"), NUMBERS)
def test_numbers_in_words(function: str, values: tuple, expected: str) -> None:
    assert getattr(words, function)(*values) == expected


def test_the_interval_of_an_error_ends_at_all_puzzles():
    values, points = np.array([0.5, 0.9, 0.4, 1.0]), np.array([1, 1, 2, 2])
    free = pooled_log_intervals(values, points)
    capped = pooled_log_intervals(values, points, most=1.0)
    assert free[1].bounds[1] > 1
    assert capped[1] == replace(free[1], bounds=(free[1].bounds[0], 1.0))


def test_holm_by_hand() -> None:
    """0.01 x 4, 0.02 x 3, 0.03 x 2, 0.04 x 1 and rising (Holm 1979)."""
    assert holm([0.03, 0.01, None, 0.04, 0.02]) == [
        pytest.approx(v) if v else None for v in (0.06, 0.04, 0, 0.06, 0.06)
    ]
    assert holm([0.8, 0.9]) == [1.0, 1.0]


def test_p_values_agree_with_scipy() -> None:
    data = np.array([0.1, 0.25, 0.02])
    assert mean(data).p == pytest.approx(stats.ttest_1samp(data, 0).pvalue)
    assert mean([0.1]).p is None
    assert mean([0.25, 0.25, 0.25]) == Mean(0.25, None, 3)  # equal differences say nothing of their spread
    assert mean([0.2, 0.2, 0.2]).p is None


def test_a_level_carries_the_error_of_its_seeds_and_of_its_test_set() -> None:
    """Simulated: 3 seeds of one model family on one test set of 200 puzzles of unlike difficulty."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        puzzles = rng.beta(2, 1, 200)  # the same for all seeds
        skill = rng.normal(0, 0.05, (3, 1))
        found = share((rng.random((3, 200)) < puzzles + skill).mean(axis=1), 200)
        held += found.bounds is not None and found.bounds[0] <= 2 / 3 <= found.bounds[1]
    assert 0.93 <= held / 400 <= 1.0
    assert share([0.9], 1000).bounds == pytest.approx(wilson(900, 1000))
    assert share([1.0, 1.0, 1.0], 1000).bounds == pytest.approx(wilson(1000, 1000))


def test_the_detectable_difference_has_the_stated_power() -> None:
    """By the noncentral t: with three pairs and four comparisons the sum of two t quantiles had 71 %."""
    for pairs, comparisons in ((20, 1), (3, 4)):
        unit = np.arange(pairs) / np.arange(pairs).std(ddof=1)
        size = detectable([mean(unit)] * comparisons)
        limit = stats.t.ppf(1 - 0.025 / comparisons, pairs - 1)
        assert size is not None
        assert stats.nct.sf(limit, pairs - 1, size * np.sqrt(pairs)) == pytest.approx(0.8, abs=1e-6)
    assert detectable([Mean(0.1, None, 1)]) is None


def test_costs_within_the_tolerance_count_as_equal() -> None:
    cost, value = np.array([1.00, 1.01, 2.0]), np.array([0.5, 0.8, 0.9])
    assert frontier(cost, value, tolerance=0).tolist() == [0, 1, 2]
    assert frontier(cost, value).tolist() == [1, 2]
