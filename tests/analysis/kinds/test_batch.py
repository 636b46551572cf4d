"""`batch`: the critical batch."""

from __future__ import annotations

from tests.analysis.conftest import Drawn
from trm.analysis.claims import sentences
from trm.analysis.kinds.batch import reached
from trm.analysis.laws import of_fit
from trm.analysis.stats import Cost, Mean


def test_a_doubtful_critical_batch_is_not_claimed() -> None:
    none = Mean(float("nan"), None, 0)
    cost = Cost(64.0, Mean(100.0, (90.0, 110.0), 3), none, none, reached=2, runs=3)
    assert reached(0.8, [cost]) == "Not every seed reaches 80 % at batch size 64 (2 of 3)."
    form = {
        "parameters": {"B*": 82.0, "Smin": 562.0},
        "intervals": {"B*": [58.0, 111.0], "Smin": [461.0, 684.0]},
    }
    group = {"chosen": "critical_batch", "forms": {"critical_batch": form}, "doubts": []}
    fit = {"spec": {"form": "critical_batch", "target": 0.8}, "groups": [group]}
    assert sentences(of_fit(fit)) == (
        "At the target of 80 %, the critical batch is 82 [58, 111] puzzles, and no batch takes fewer than 562 "
        "[461, 684] steps."
    )
    fit["groups"] = [{**group, "doubts": ["2 points cannot test it"]}]
    assert "we claim no critical batch: 2 points cannot test it." in sentences(of_fit(fit))


def test_it_is_drawn(drawn: Drawn) -> None:
    drawing = drawn("batch_size", kind="batch")
    assert "At the target of 80 %, the critical batch is" in drawing.sentence
    assert "gradient noise scale" in drawing.sentence
    assert "At the recipe, the target of 80 %" in drawn("batch_blocks", kind="batch").sentence
