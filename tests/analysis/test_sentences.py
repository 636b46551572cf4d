"""Sentences follow the numbers: flip a result and its sentence flips."""

from __future__ import annotations

from typing import Any

import pytest

from trm.analysis.sentences.agreement import Agreement, agreement_answer, agreement_sentence
from trm.analysis.sentences.comparisons import (
    ablation_answer,
    ablation_sentence,
    gap_sentence,
    interaction_sentence,
    pareto_sentence,
)
from trm.analysis.sentences.laws import equation, group_sentence
from trm.analysis.sentences.special import (
    halting_sentence,
    inference_sentence,
    joint_sentence,
    optimum_sentence,
    repeated_sentence,
    steps_sentence,
)
from trm.analysis.stats.intervals import Mean


def law(slope: float, bounds: list[float], chosen: str = "power_law", **more: Any) -> dict[str, Any]:
    form = {
        "parameters": {"E": 0.05, "A": 2.0, "a": slope},
        "intervals": {"E": [0.04, 0.06], "A": [1.0, 3.0], "a": bounds},
        "borne": True,
        "failed_share": 0.0,
        "bound_share": 0.0,
        **more,
    }
    return {
        "chosen": chosen,
        "forms": {chosen: form},
        "range": [[100.0, 1000.0]],
        "points": 5,
        "interval": 0.95,
    }


@pytest.mark.parametrize(
    ("slope", "bounds", "words"),
    [
        (0.5, [0.4, 0.6], "Error falls with the power −0.5 [−0.6, −0.4]"),
        (-0.5, [-0.6, -0.4], "Error rises with the power 0.5 [0.4, 0.6]"),
        (0.1, [-0.2, 0.4], "Error shows no certain trend"),
    ],
)
def test_a_law_falls_rises_or_shows_no_trend(slope: float, bounds: list[float], words: str) -> None:
    assert group_sentence(law(slope, bounds), "data.train_puzzles").startswith(words)


def test_floors_constants_and_doubts_are_said() -> None:
    assert "towards a floor of 5 % [4.00, 6.00]" in group_sentence(
        law(0.5, [0.4, 0.6], "power_law_floor"), "data.train_puzzles"
    ).replace("5.00 %", "5 %")
    assert "does not change measurably" in group_sentence(law(0, [0, 0], "constant"), "parameters")
    text = group_sentence(law(0.5, [0.4, 0.6], borne=False, failed_share=0.2, bound_share=0.3), "parameters")
    assert "5 points do not test a form with 3 parameters" in text
    assert "20 % of the refits failed" in text
    assert "could be fitted: too few" in group_sentence({"error": "too few", "points": 1}, "parameters")


def test_targets_have_a_price() -> None:
    reached = law(0.5, [0.4, 0.6], target={"accuracy": 0.85, "x": 2500.0, "interval": [2000.0, None]})
    assert "85 % accuracy needs 2.5k [2k, ∞] puzzles" in group_sentence(reached, "data.train_puzzles")
    never = law(0.5, [0.4, 0.6], target={"accuracy": 0.85, "x": None, "interval": [None, None]})
    assert "is never reached" in group_sentence(never, "data.train_puzzles")


def test_the_equation_is_stated_at_a_round_place() -> None:
    group = law(0.5, [0.4, 0.6], reference={"x": 200.0, "A": 0.141, "interval": [0.12, 0.16]})
    text = equation(group, "data.train_puzzles")
    assert "(D / 200)" in text
    assert "A = 14 [12, 16] %" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Mean(0.05, 0.02, 0.08, 3), "B lies 5 [2, 8] percentage points above"),
        (Mean(-0.05, -0.08, -0.02, 3), "B lies 5 [2, 8] percentage points below"),
        (Mean(0.05, -0.02, 0.12, 3), "B does not differ certainly from A (+5 [−2, 12] percentage points)"),
        (Mean(0.05, None, None, 1), "one pair of seeds: no interval"),
    ],
)
def test_an_ablation_helps_hurts_or_is_unsure(change: Mean, words: str) -> None:
    assert words in ablation_sentence({"B": change}, "A", "exact_accuracy", 0.8)


def test_effects_hold_or_change_at_scale() -> None:
    holds = interaction_sentence(
        "no EMA", "batch 768", "batch 4096", Mean(0.01, -0.02, 0.04, 3), "exact_accuracy"
    )
    changes = interaction_sentence(
        "no EMA", "batch 768", "batch 4096", Mean(0.05, 0.02, 0.08, 3), "exact_accuracy"
    )
    assert "not certainly different" in holds
    assert "changes between batch 768 and batch 4096" in changes


def test_gaps_and_frontiers() -> None:
    assert "50 percentage points" in gap_sentence({"a": (0.9, 0.4), "b": (0.9, 0.8)})
    assert "No grid point solves more" in gap_sentence({"a": (0.4, 0.5)})
    assert "1 lies on the frontier" in pareto_sentence([("a", 1e12, 0.5)], 3, "train_flops", "exact_accuracy")


def test_inference_halting_and_steps() -> None:
    base = {"reference": {"value": 0.6, "flops": 1e8}}
    gain = {"value": 0.7, "flops": 4e8, "steps": 32, "restarts": 1, "change": 0.1, "low": 0.05, "high": 0.15}
    assert "adds +10.0 [5, 15]" in inference_sentence({**base, "fixed": gain})
    loss = {**gain, "change": -0.1, "low": -0.15, "high": -0.05}
    assert "loses −10.0 [−15, −5]" in inference_sentence({**base, "fixed": loss})
    unsure = {**gain, "low": -0.05}
    assert "makes no certain difference" in inference_sentence({**base, "fixed": unsure})
    item = {"mean_steps": 3.0, "low": 2.5, "high": 3.5, "halted": 0.9, "most": 16.0, "exact_accuracy": 0.8}
    assert "3 [2.5, 3.5] of 16 steps" in halting_sentence({"a": item})
    assert "after 2 steps; 1 was right on the way" in steps_sentence([[3, 0], [0, 2]])


def test_laws_of_two_variables() -> None:
    form = {
        "parameters": {"E": 0.02, "A": 1.0, "a": 0.5, "B": 1.0, "b": 0.3, "R*": 12.0},
        "intervals": {"R*": [8.0, 20.0]},
        "borne": True,
        "at_bound": False,
    }
    group = {"forms": {"joint": form, "repeated_data": form}, "points": 9, "interval": 0.95}
    assert "at most 12 [8, 20] fresh puzzles" in repeated_sentence(group)
    assert "power −0.5 of the parameters and −0.3 of the training compute" in joint_sentence(group)
    bound = {**group, "forms": {"joint": {**form, "at_bound": True}}}
    assert "not determined" in joint_sentence(bound)


@pytest.mark.parametrize(
    ("slope", "bounds", "words"),
    [(0.5, [0.3, 0.7], "rises"), (-0.5, [-0.7, -0.3], "falls"), (0.1, [-0.3, 0.5], "no certain trend")],
)
def test_the_optimum_moves(slope: float, bounds: list[float], words: str) -> None:
    group = {
        "optima": [{"second": 64.0, "edge": False}, {"second": 256.0, "edge": True}],
        "law": {"parameters": {"A": 1.0, "a": slope}, "intervals": {"a": bounds}, "borne": True, "points": 3},
    }
    text = optimum_sentence(group, "training.lr", "training.batch_size")
    assert words in text
    assert "batch size 256 the best learning rate lies at the edge" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            Mean(-0.2, -0.25, -0.15, 3),
            "Off lies 20 [15, 25] percentage points below on; the other one does not differ certainly.",
        ),
        (
            Mean(0.2, 0.15, 0.25, 3),
            "Off lies 20 [15, 25] percentage points above on; the other one does not differ certainly.",
        ),
        (Mean(-0.2, -0.45, 0.05, 3), "No value differs certainly from on"),
    ],
)
def test_the_answer_names_the_largest_certain_difference(change: Mean, words: str) -> None:
    small = Mean(0.01, -0.02, 0.04, 3)
    assert ablation_answer({None: {"off": change, "half": small}}, "on", "exact_accuracy", []).startswith(
        words
    )


def test_the_answer_says_whether_effects_hold_elsewhere() -> None:
    crossed = [{"elsewhere": "batch size 512", "low": -0.1, "high": 0.1}]
    sure = {None: {"off": Mean(-0.2, -0.25, -0.15, 3)}}
    text = ablation_answer(sure, "on", "exact_accuracy", crossed)
    assert text.endswith("at batch size 512 the effect does not change certainly.")
    changed = [{"elsewhere": "batch size 512", "low": 0.1, "high": 0.2}]
    assert "at batch size 512 none of 2 effects changes" in ablation_answer(
        sure, "on", "exact_accuracy", crossed * 2
    )
    assert "at batch size 512 the effect changes" in ablation_answer(sure, "on", "exact_accuracy", changed)


def test_runs_that_ought_to_be_the_same_agree_or_do_not() -> None:
    first = Agreement("CPU", {}, {}, 0.8, 500.0, 3e8)
    same = Agreement("plain", {"loss": 0.0}, {"loss": 0.0}, 0.8, 400.0, 3e8)
    near = Agreement("XLA", {"loss": 1e-6}, {"loss": 0.02}, 0.81, 100.0, 9e8)
    far = Agreement("CUDA", {"loss": 0.1}, {"loss": 0.2}, 0.7, 900.0, 9e8)
    assert "CPU and plain are the same to the last bit" in agreement_answer([first, same])
    assert "XLA agrees with CPU to rounding" in agreement_answer([first, near])
    assert "CUDA does not agree" in agreement_answer([first, far])
    assert "Of 2 other ways to compute CPU's run, 1 agree to rounding" in agreement_answer([first, near, far])
    text = agreement_sentence([first, same, near, far])
    assert "plain is CPU to the last bit" in text
    assert "XLA agrees with CPU: loss within" in text
    assert "CUDA does not agree with CPU" in text
    assert "100 puzzles/s" in text
