"""`batch`: the critical batch."""

from __future__ import annotations

from tests.analysis.conftest import Drawn
from trm.analysis.kinds.batch import batch_sentence
from trm.analysis.stats import Cost, Mean


def test_a_doubtful_critical_batch_is_not_claimed() -> None:
    none = Mean(float("nan"), None, None, 0)
    cost = Cost(64.0, Mean(100.0, 90.0, 110.0, 3), none, none, reached=2, runs=3)
    form = {
        "parameters": {"B*": 82.0, "Smin": 562.0},
        "intervals": {"B*": [58.0, 111.0], "Smin": [461.0, 684.0]},
    }
    group = {"forms": {"critical_batch": form}, "doubts": []}
    text = batch_sentence({0.8: group}, {0.8: [cost]}, [])
    assert (
        "To 80 %, the critical batch is 82 [58, 111] puzzles and no batch takes fewer than 562 [461, 684] steps"
        in text
    )
    assert "Not every seed reaches 80 % at batch size 64 (2 of 3)" in text
    doubtful = batch_sentence({0.8: {**group, "doubts": ["2 points cannot test it"]}}, {0.8: [cost]}, [])
    assert "No critical batch is claimed for 80 %: 2 points cannot test it." in doubtful


def test_it_is_drawn(drawn: Drawn) -> None:
    drawing = drawn("batch_size", kind="batch")
    assert "To 80 %, the critical batch is" in drawing.sentence
    assert "gradient noise scale" in drawing.sentence
    assert "With the recipe" in drawn("batch_blocks", kind="batch").sentence
