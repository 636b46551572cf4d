"""One template for each kind of finding, and one table of all."""

from typing import Any

import pandas as pd
import pytest

from trm.analysis.findings import Finding, compared, main, significant, strength, told
from trm.analysis.stats import Mean


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
        (difference("undecided", interval=None, pairs=0), "No seed is shared by B and A."),
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
    mean = Mean(0.1, (0.02, 0.18), 3)
    assert significant("error", {0: mean}, lambda _: ("B", "A"))[0].sign == 1
    many = significant("error", dict.fromkeys(range(10), mean), lambda _: ("B", "A"))
    assert {finding.verdict for finding in many.values()} == {"undecided"}


def test_only_shared_seeds_are_compared() -> None:
    left, right = pd.Series({0: 0.5, 1: 0.6}), pd.Series({1: 0.7, 2: 0.9})
    made = compared("exact_accuracy", {0: (left, right)}, lambda _: ("B", "A"))[0]
    assert (made.verdict, made.pairs, made.ends) == ("undecided", 1, (0.6, 0.7))
    assert compared("error", {0: (left, pd.Series({5: 1.0}))}, lambda _: ("B", "A"))[0].pairs == 0
