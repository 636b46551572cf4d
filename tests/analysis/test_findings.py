"""One template for each kind of finding, and one table of all."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_ind

from trm.analysis.findings import Contrast, Finding, compared, contrast, main, strength, told
from trm.analysis.laws import law_findings
from trm.analysis.stats import Mean, seed_spread


def difference(verdict: Any = "supported", value: float = 0.05, **fields: Any) -> Finding:
    fields = {"subject": "B", "against": "A", "interval": (value - 0.03, value + 0.03), "pairs": 3, **fields}
    return Finding(fields.pop("kind", "difference"), "exact_accuracy", value=value, verdict=verdict, **fields)


def growth(
    verdict: Any = "supported", kind: Any = "optimum", metric: str = "model.d_model", **fields: Any
) -> Finding:
    fields = {"value": 0.5, "interval": (0.4, 0.6), **fields}
    return Finding(kind, metric, "training compute", verdict=verdict, **fields)


OUT = {"value": 0.1, "interval": (0.08, 0.12), "ends": (0.11, 0.1)}


@pytest.mark.parametrize(
    ("finding", "words"),
    [
        (difference("undecided", interval=None, pairs=1), "; one pair of seeds gives no interval."),
        (
            difference("undecided", interval=None, pairs=0),
            "No pair of equal seeds has exact accuracy with both B and A.",
        ),
        (
            growth(metric="model.halt_max_steps", against="between 1 and 2 FLOPs"),
            "The best supervision steps Nsup grow with training compute by a local exponent of 0.50 [0.40, 0.60] "
            "between 1 and 2 FLOPs.",
        ),
        (
            Finding("prediction", "model.d_model", "4 points", verdict="contradicted", **OUT),
            "4 points predict width d 0.10 [0.08, 0.12]; 0.11 was measured, outside.",
        ),
        (Finding("price", "data.train_puzzles", "85 % accuracy"), "85 % accuracy is never reached by this law."),
    ],
)  # fmt: skip
def test_templates_that_no_figure_of_the_small_study_needs(finding: Finding, words: str) -> None:
    """The others are in sentences.json."""
    assert finding.text.endswith(words)


TOO_FEW = "No difference of exact accuracy between A and B is excluded; 2 pairs of seeds are too few."
TWICE = "No difference of the effect of B on exact accuracy between A and C is excluded."


@pytest.mark.parametrize(
    ("kind", "value", "interval", "words", "shown"),
    [
        ("difference", 0.1, (-1.4, 1.6), TOO_FEW, (-1, 1)),
        (
            "difference",
            -0.5,
            (-1.4, 0.4),
            "is at most 40.0 points higher with B than with A; no difference",
            (-1, 0.4),
        ),
        (
            "difference",
            0.5,
            (-0.4, 1.4),
            "is at most 40.0 points lower with B than with A; no difference",
            (-0.4, 1),
        ),
        ("interaction", 0.1, (-2.9, 3.1), TWICE, (-2, 2)),
        ("interaction", 0.1, (-1.1, 1.3), "is within 130.0 points of that at A.", (-1.1, 1.3)),
    ],
)
def test_a_difference_of_shares_ends_where_the_shares_do(
    kind: Any, value: float, interval: Any, words: str, shown: Any
) -> None:
    contrasts = {0: Contrast(Mean(value, interval, 2), "B", "A", "C" * (kind == "interaction"), kind=kind)}
    found = compared("exact_accuracy", contrasts)[0]
    row = found.record
    assert words in found.text
    assert ((row["low"], row["high"]), row["excluded"]) == (shown, 1.3 if "130" in words else None)
    assert compared("cross_entropy", contrasts)[0].interval == interval


def test_the_row_holds_the_smallest_effect_that_an_undecided_finding_excludes() -> None:
    row = difference("undecided", 0.01).record
    assert (row["excluded"], row["low"]) == (pytest.approx(0.04), pytest.approx(-0.02))
    assert difference().record["excluded"] is None
    assert row["text"] == difference("undecided", 0.01).text
    assert Finding("level", "error", "").record["value"] is None


def test_the_answer_is_the_largest_established_difference() -> None:
    small, large = difference(), difference(value=-0.1, subject="D")
    unsure = [difference("undecided", 0.01, subject="C"), difference("undecided", 0.02, subject="E")]
    oracle = difference(value=0.5, counts=False)
    assert main([oracle, *unsure, small, large]) is large
    assert main(unsure) is unsure[1]  # the one that could be largest
    assert main([oracle]) is None
    assert main([growth(), small]) == growth()
    assert told([*unsure, small, large]) == " ".join([large.text, small.text, unsure[0].text])


def test_only_what_counts_gives_strength() -> None:
    assert strength([difference(counts=False)]) is None
    assert strength([difference(value=0.3, counts=False), difference(value=0.06)]) == pytest.approx(2.0)
    fall = Finding(
        "change", "error", "x", "between 1 and 10", -3.0, (-3.1, -2.9), "supported", ends=(0.8, 0.04)
    )
    assert fall.strength == 1.5  # a fall without a form is never better than a law


def test_many_comparisons_need_stronger_evidence() -> None:
    """p = 0.03 alone is a difference; among ten comparisons it is not."""
    one = Contrast(Mean(0.1, (0.02, 0.18), 3), "B", "A")
    assert compared("error", {0: one})[0].sign == 1
    many = compared("error", dict.fromkeys(range(10), one))
    assert {finding.verdict for finding in many.values()} == {"undecided"}


def test_only_shared_seeds_are_compared() -> None:
    left, right = pd.Series({0: 0.5, 1: 0.6}), pd.Series({1: 0.7, 2: 0.9})
    made = compared("exact_accuracy", {0: contrast(left, right, "B", "A")})[0]
    assert (made.verdict, made.pairs, made.ends) == ("undecided", 1, (0.6, 0.7))
    assert compared("error", {0: contrast(left, pd.Series({5: 1.0}), "B", "A")})[0].pairs == 0
    never = pd.Series({0: 0.9, 1: float("nan")})  # a seed that never reaches a target has no pair
    assert contrast(left, never, "B", "A").ends == (0.5, 0.9)


def test_a_change_is_a_factor_and_a_constant_a_level() -> None:
    """From 2 to 0.5: a quarter; the numbers of the row are logarithms."""
    value = math.log(0.25)
    fall = Finding(
        "change", "error", "x", "", value, (value - 0.1, value + 0.1), "supported", why="w", ends=(0.8, 0.2)
    )
    assert fall.amount == "factor 0.25 [0.23, 0.28]"
    assert (
        Finding("change", "cross_entropy", "x", "", value, why="w", ends=(2.0, 0.5)).amount == "factor 0.25"
    )
    assert Finding("change", "error", "x", why="2 usable points: too few for a law").amount == "–"
    unsure = replace(fall, value=0.1, interval=(-0.1, 0.3), verdict="undecided")
    assert unsure.excluded == pytest.approx(0.3)  # also a logarithm
    level = Finding("change", "error", "x", "between 1 and 9", 0.2, (0.1, 0.3), ends=(0.2, 0.2))
    assert (level.amount, level.excluded) == ("20.0 % [10.0, 30.0]", None)


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ([2e5, 4e5], "needs 282,000 [200,000, 400,000] puzzles."),
        ([24_102.0, None], "needs 282,000 (at least 24,102) puzzles; 73.0 % of the refits never reach it."),
        ([None, None], "needs 282,000 puzzles."),
    ],
)
def test_a_price_without_an_upper_end_says_the_lower_one(interval: list[float | None], words: str) -> None:
    target = {"accuracy": 0.97, "x": 282_000.0, "interval": interval, "never_share": 0.73}
    form = {"parameters": {"A": 1.0, "a": 0.5}, "intervals": {"a": [0.4, 0.6]}, "target": target}
    group = {"chosen": "power_law", "doubts": [], "forms": {"power_law": form}, "range": [[1.0, 9.0]]}
    found = law_findings({**group, "means": {"y": [0.9, 0.1], "seeds": [3, 3]}}, "data.train_puzzles")[-1]
    assert found.text == f"97 % accuracy {words}"


@pytest.mark.parametrize("seeds", [2, 3, 6])
def test_a_fall_between_two_points_has_students_interval(seeds: int) -> None:
    """Of two samples with one variance, as scipy has it."""
    one, two = (np.random.default_rng(at).normal(-at, 0.1, seeds) for at in (0, 1))
    logs, points = np.concatenate([one, two]), np.repeat([0, 1], seeds)
    means = {"x": [[1.0, 9.0]], "y": [np.exp(one.mean()), np.exp(two.mean())], "seeds": [seeds] * 2}
    group = {"chosen": "power_law", "doubts": ["few"], "forms": {"power_law": {}}, "means": means}
    found = law_findings(
        {**group, "range": [[1.0, 9.0]], "seed_spread": seed_spread(logs, points)}, "parameters"
    )
    assert found[0].interval == pytest.approx(tuple(ttest_ind(two, one).confidence_interval()))
