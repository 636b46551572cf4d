"""One renderer for all findings: every verdict of every measure in words."""

from typing import Any

import pandas as pd
import pytest

from trm.analysis.claims import Claim, answer, claimed, compared, level, sentences, strength
from trm.analysis.stats import Mean


def difference(verdict: Any, value: float = 0.05, **fields: Any) -> Claim:
    bounds = None if verdict in ("single", "none") else (value - 0.03, value + 0.03)
    fields = {"ends": (0.8, 0.8 + value), "pairs": 3, **fields}
    return Claim("exact_accuracy", fields.pop("subject", "B"), "A", value, bounds, verdict, **fields)


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (difference("higher"), "exact accuracy rises from 80.0 % with A to 85.0 % with B (+5.0 [2.0, 8.0] points)"),
        (difference("lower", -0.05, ends=None), "exact accuracy is 5.0 [2.0, 8.0] points lower with B than with A"),
        (difference("open", 0.01), "differs by +1.0 [−2.0, 4.0] points between A and B: no difference established"),
        (difference("corrected"), "between A and B: not established after correction for several comparisons"),
        (difference("single"), "is 80.0 % with A and 85.0 % with B (3 equal differences, no interval)"),
        (difference("single", pairs=1), "is 80.0 % with A and 85.0 % with B (one pair of seeds, no interval)"),
        (difference("none"), "exact accuracy with B and with A share no seed: not compared"),
        (difference("higher", more="at 4 times the compute"), "points), at 4 times the compute"),
    ],
)  # fmt: skip
def test_every_verdict_of_a_difference(claim: Claim, words: str) -> None:
    assert words in claim.text()


def test_several_differences_are_told_together() -> None:
    found = [
        difference("higher", 0.05, subject="B"),
        difference("open", 0.01, subject="C"),
        difference("lower", -0.1, subject="D"),
    ]
    assert sentences(found) == (
        "Exact accuracy with A is 80.0 %; it is higher with B (5.0 [2.0, 8.0] points); it is lower with D (10.0 [7.0, "
        "13.0] points); no difference is established for C (+1.0 [−2.0, 4.0] points)."
    )
    many = [difference("lower", -0.1 - index / 100, subject=str(index)) for index in range(6)]
    assert "it is lower with 6 of 6 others (10.0 to 15.0 points)" in sentences(many)
    apart = [difference("higher", place="batch size 128"), difference("higher", place="batch size 512")]
    assert sentences(apart).count("At batch size") == 2


def test_the_answer_is_the_largest_established_difference_and_what_holds_elsewhere() -> None:
    found = [difference("higher", 0.05, subject="B"), difference("lower", -0.1, subject="D")]
    assert answer(found).startswith("Exact accuracy falls from 80.0 % with A to 70.0 % with D")
    second = "with D (−10.0 [−13.0, −7.0] points), and rises to 85.0 % with B (+5.0 [2.0, 8.0] points)."
    assert answer(found).endswith(second)
    elsewhere = difference("open", 0.3, place="Nsup = 1")
    assert answer([elsewhere, *found]) == answer(found)
    assert ", and to 85.0 % with B" in answer([difference("higher", 0.1, subject="D"), found[0]])
    bare = [difference("higher", 0.05, subject="B", ends=None), found[1]]
    assert answer(bare).endswith("; the other differs too.")
    one = [difference("lower", -0.1, subject="D"), difference("open", 0.01, subject="B")]
    assert answer(one).endswith("; the other is not established to differ.")
    unsure = [difference("open", 0.01, subject=name) for name in "BC"]
    assert answer(unsure) == (
        "Exact accuracy differs from that with A by no more than 4.0 points at any other value: no difference "
        "established."
    )
    crossed = difference("open", 0.01, measure="interaction", place="batch size 512")
    assert answer([found[0], crossed]).endswith("at batch size 512, none of 1 effect changes.")
    assert crossed.text().endswith("differs from that at A by +1.0 [−2.0, 4.0] points: not established")


def test_only_what_counts_is_the_answer_and_gives_strength() -> None:
    oracle = difference("higher", 0.3, subject="the oracle", counts=False)
    assert answer([oracle, difference("higher")]).startswith(
        "Exact accuracy rises from 80.0 % with A to 85.0 %"
    )
    assert strength([oracle]) is None
    assert strength([oracle, difference("higher", 0.06)]) == pytest.approx(2.0)
    fall = Claim("error", "x", "between 1 and 10", -3.0, (-3.1, -2.9), "lower", "change", ends=(0.8, 0.04))
    assert fall.strength == 1.5  # a fall without a form is never better than a law
    assert fall.text() == "error falls from 80.0 to 4.0 % between 1 and 10"


def test_many_comparisons_need_stronger_evidence() -> None:
    """p = 0.03 alone is a difference; among ten comparisons it is not."""
    mean = Mean(0.1, (0.02, 0.18), 3)
    assert claimed("error", {0: mean}, lambda _: ("B", "A"))[0].sign == 1
    many = claimed("error", dict.fromkeys(range(10), mean), lambda _: ("B", "A"))
    assert {claim.verdict for claim in many.values()} == {"corrected"}


def test_only_shared_seeds_are_compared() -> None:
    left, right = pd.Series({0: 0.5, 1: 0.6}), pd.Series({1: 0.7, 2: 0.9})
    made = compared("exact_accuracy", {0: (left, right)}, lambda _: ("B", "A"))[0]
    assert (made.verdict, made.pairs) == ("single", 1)
    assert made.ends == (0.6, 0.7)
    assert compared("error", {0: (left, pd.Series({5: 1.0}))}, lambda _: ("B", "A"))[0].verdict == "none"


def test_levels() -> None:
    two = [
        level("mean_steps", name, Mean(value, None, 1), " of 8") for name, value in (("A", 3.0), ("B", 5.0))
    ]
    assert sentences(two) == "The mean supervision steps are 3 steps of 8 (A) and 5 steps of 8 (B)."
    assert two[0].text() == "mean supervision steps with A are 3 steps of 8"
    gap = level("train_test_gap", "", Mean(1.8, None, 1))
    assert gap.text() == "the gap between training and unseen puzzles is 1.8 percentage points"
