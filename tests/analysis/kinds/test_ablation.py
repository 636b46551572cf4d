"""`ablation`: claims follow from Holm-corrected tests of paired differences."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis.conftest import Drawn, figure
from trm.analysis.claims import Claim, claim, claims
from trm.analysis.kinds.ablation import (
    ablation_answer,
    ablation_sentence,
    baseline_of,
    interaction_sentence,
    power_sentence,
)
from trm.analysis.stats import Mean
from trm.errors import UserError


def sure(value: float, low: float, high: float) -> Claim:
    return claim("exact_accuracy", "B", "A", Mean(value, low, high, 3), 0.01)


def unsure(value: float, low: float, high: float) -> Claim:
    return claim("exact_accuracy", "B", "A", Mean(value, low, high, 3), 0.4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (sure(0.05, 0.02, 0.08), "With B: 5.0 [2.0, 8.0] points higher than with A."),
        (sure(-0.05, -0.08, -0.02), "With B: 5.0 [2.0, 8.0] points lower than with A."),
        (
            unsure(0.05, -0.02, 0.12),
            "With B: +5.0 [−2.0, 12.0] points against A, no difference established (at most 12.0 points).",
        ),
        (unsure(0.05, 0.02, 0.08), "not established after correction for several comparisons"),
        (
            claim("exact_accuracy", "B", "A", Mean(0.05, None, None, 1), None),
            "one pair of seeds: no interval",
        ),
    ],
)
def test_a_difference_is_higher_lower_or_bounded(change: Claim, words: str) -> None:
    assert words in ablation_sentence({"B": change}, "A", "exact_accuracy", 0.8)


def test_many_comparisons_need_stronger_evidence() -> None:
    """p = 0.03 alone is a difference; among ten comparisons it is not."""
    mean = Mean(0.1, 0.02, 0.18, 3)
    assert claims("error", "A", {0: mean})[0].sign == 1
    assert {change.verdict for change in claims("error", "A", dict.fromkeys(range(10), mean)).values()} == {
        "corrected"
    }


def test_effects_hold_or_change_elsewhere() -> None:
    words = ("no EMA", "batch 768", "batch 4096")
    assert "not established" in interaction_sentence(*words, unsure(0.01, -0.02, 0.04), "exact_accuracy")
    changed = interaction_sentence(*words, sure(0.05, 0.02, 0.08), "exact_accuracy")
    assert "changes between batch 768 and batch 4096, by +5.0 [2.0, 8.0] points" in changed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            sure(-0.2, -0.25, -0.15),
            "Exact accuracy with off is 20.0 [15.0, 25.0] points lower than with A; the other value is not",
        ),
        (sure(0.2, 0.15, 0.25), "Exact accuracy with off is 20.0 [15.0, 25.0] points higher than with A"),
        (
            unsure(-0.2, -0.45, 0.05),
            "Exact accuracy differs from that with on by no more than 45.0 points at",
        ),
    ],
)
def test_the_answer_names_the_largest_established_difference(change: Claim, words: str) -> None:
    changes = {None: {"off": change, "half": unsure(0.01, -0.02, 0.04)}}
    assert ablation_answer(changes, "on", "exact_accuracy", []).startswith(words)


def test_the_answer_says_whether_effects_hold_elsewhere() -> None:
    crossed: list[dict[str, Any]] = [{"elsewhere": "batch size 512", "low": -0.1, "sign": 0}]
    changes = {None: {"off": sure(-0.2, -0.25, -0.15)}}
    text = ablation_answer(changes, "on", "exact_accuracy", crossed)
    assert text.endswith("at batch size 512, none of 1 effect changes.")
    changed = [{**crossed[0], "sign": 1}]
    assert "at batch size 512, 1 of 1 effect changes" in ablation_answer(
        changes, "on", "exact_accuracy", changed
    )


def test_the_power_of_the_seeds_is_stated() -> None:
    """sd 0.1 of 3 pairs: (4.303 + 1.061) 0.1 / sqrt(3) = 31 points."""
    half = 4.303 * 0.1 / 3**0.5
    text = power_sentence([Mean(0.0, -half, half, 3)], "exact_accuracy")
    assert "3 pairs of seeds can show a difference of 31.0 points (80 % power)" in text
    assert "too few to show any difference" in power_sentence([Mean(0.0, -2.0, 2.0, 3)], "exact_accuracy")


def test_the_baseline_is_named_else_the_scales_recipe_else_the_papers() -> None:
    spec = figure(kind="ablation", x="model.halt_max_steps")
    values = [1, 2, 4, 8, 16]
    assert baseline_of(spec, values, {"model.halt_max_steps": 8}) == 8
    assert baseline_of(spec, [1, 2, 8], {"model.halt_max_steps": 7}) == 8
    assert baseline_of(spec, values, {}) == 16
    assert baseline_of(spec.model_copy(update={"baseline": 2}), values, {"model.halt_max_steps": 8}) == 2
    assert baseline_of(figure(kind="ablation", x="label"), ["first", "second"], {}) == "first"


@pytest.mark.parametrize(
    ("experiment", "spec"),
    [
        ("mixer", {"x": "model.mixer", "second": ["wall_seconds", "peak_memory_bytes"]}),
        ("ema", {"x": "training.ema", "hue": "training.batch_size"}),
        ("ema", {"x": "evaluation.weights"}),
        ("blocks", {"x": "model.d_model"}),
    ],
)
def test_it_is_drawn(drawn: Drawn, experiment: str, spec: dict[str, Any]) -> None:
    drawing = drawn(experiment, kind="ablation", **spec)
    assert "Holm" in drawing.caption
    assert drawing.numbers["detectable"] > 0


def test_an_unknown_baseline_is_refused(drawn: Drawn) -> None:
    with pytest.raises(UserError, match="baseline tanh is not a value"):
        drawn("mixer", kind="ablation", x="model.mixer", baseline="tanh")
