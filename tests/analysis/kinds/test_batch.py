"""`batch`: the critical batch."""

import pandas as pd
import pytest

from trm.analysis.findings import told
from trm.analysis.kinds.batch import noise_scale, reached
from trm.analysis.laws import findings_of_fit


def test_a_doubtful_critical_batch_is_not_claimed() -> None:
    rows = pd.DataFrame({"training.batch_size": 64, "steps_to_80": [90.0, 110.0, None]})
    assert reached(80, rows) == "Not every seed reaches 80 % at batch size 64 (2 of 3)."
    form = {
        "parameters": {"B*": 82.0, "Smin": 562.0},
        "intervals": {"B*": [58.0, 111.0], "Smin": [461.0, 684.0]},
    }
    group = {"chosen": "critical_batch", "forms": {"critical_batch": form}, "doubts": []}
    fit = {"spec": {"form": "critical_batch", "y": "steps_to_80"}, "groups": [group]}
    assert told(findings_of_fit(fit)) == "At the target of 80 %, the critical batch is 82 [58, 111] puzzles."
    fit["groups"] = [{**group, "doubts": ["2 points cannot test it"]}]
    (found,) = findings_of_fit(fit)
    assert found.text == "At the target of 80 %, no critical batch is established; 2 points cannot test it."
    assert not found.sign


def test_the_noise_scale_is_the_one_that_training_measured() -> None:
    rows, curves = pd.DataFrame({"run": ["a", "b"]}), pd.DataFrame({"run": [*"aaaabbbbc"]})
    assert noise_scale(rows, curves) is None
    logged = curves.assign(**{"train/noise_scale": [9.0, 9, 100, 100, 9, 9, 400, 400, 7]})
    assert noise_scale(rows, logged) == pytest.approx(200.0)
