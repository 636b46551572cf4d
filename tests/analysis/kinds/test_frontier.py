"""`frontier`: what compute buys."""

from __future__ import annotations

from typing import Any

import pytest

from tests.analysis.conftest import Drawn
from trm.analysis.claims import claim
from trm.analysis.kinds.frontier import inference_answer, inference_sentence, strength
from trm.analysis.stats import Mean

BASE = {"reference": {"value": 0.6, "flops": 1e8}}
GAIN = {
    "value": 0.7,
    "flops": 4e8,
    "steps": 32,
    "restarts": 1,
    "claim": claim("exact_accuracy", "more", "less", Mean(0.1, 0.05, 0.15, 3), 0.01),
}


def changed(value: float, low: float | None, high: float | None, p: float | None) -> dict[str, Any]:
    return {**GAIN, "claim": claim("exact_accuracy", "more", "less", Mean(value, low, high, 3), p)}


def test_gains_and_losses_are_claimed_after_correction_only() -> None:
    assert "More supervision steps: +10.0 [5.0, 15.0] points, at 4 times" in inference_sentence(
        {**BASE, "fixed": GAIN}
    )
    loss = changed(-0.1, -0.15, -0.05, 0.01)
    assert "−10.0 [−15.0, −5.0] points" in inference_sentence({**BASE, "fixed": loss})
    late = changed(0.1, 0.05, 0.15, 0.2)
    assert "not established after correction for several comparisons" in inference_sentence(
        {**BASE, "fixed": late}
    )
    unsure = changed(0.1, -0.05, 0.15, 0.2)
    assert "not established, at" in inference_sentence({**BASE, "fixed": unsure})
    alone = changed(0.1, None, None, None)
    assert "from 60.0 % to 70.0 % (+10.0 points in one seed)" in inference_answer({**BASE, "fixed": alone})
    assert inference_answer({**BASE, "fixed": GAIN}).startswith(
        "Compute at test time changes accuracy from 60.0 % to 70.0 %"
    )
    assert inference_answer({**BASE, "fixed": unsure}).startswith(
        "No gain from more compute at test time is established"
    )


def test_only_gains_that_a_user_could_have_are_findings() -> None:
    assert strength({**BASE, "fixed": GAIN}) == pytest.approx(2.0)
    loss = changed(-0.1, -0.15, -0.05, 0.01)
    assert strength({**BASE, "confident": loss, "oracle": GAIN}) is None


def test_they_are_drawn(drawn: Drawn) -> None:
    drawing = drawn("inference", kind="frontier")
    assert set(drawing.numbers["gains"]) == {
        "reference",
        "fixed",
        "confident",
        "restarts",
        "majority",
        "oracle",
    }


def test_unlike_grid_points_are_never_averaged(drawn: Drawn) -> None:
    drawing = drawn("unroll", kind="frontier")
    one = drawn("unroll", kind="frontier", where={"model.d_model": 16})
    assert drawing.numbers["gains"] == one.numbers["gains"]
    assert "d_model=16" in drawing.sentence or "d=16" in drawing.sentence
