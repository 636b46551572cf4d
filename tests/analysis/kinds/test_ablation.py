"""`ablation`: claims follow from Holm-corrected tests of paired differences."""

import pandas as pd

from tests.analysis.conftest import figure
from trm.analysis.kinds.ablation import baseline_of, power, unmatched
from trm.analysis.stats import Mean, detectable


def test_the_power_of_the_seeds_is_stated() -> None:
    """sd 0.1 of 3 pairs: 5.65 x 0.1 / sqrt(3) = 32.6 points by the noncentral t."""
    half = 4.303 * 0.1 / 3**0.5
    near, far = Mean(0.0, (-half, half), 3), Mean(0.0, (-2.0, 2.0), 3)
    text = power([near], detectable([near]), "exact_accuracy")
    assert text == "3 pairs of seeds can show a difference of 32.6 points (80 % power)."
    assert "too few to show any difference" in power([far], detectable([far]), "exact_accuracy")


def test_values_that_differ_in_training_compute_are_said_to() -> None:
    rows = pd.DataFrame({"model.l_cycles": [1, 1, 4, 4], "train_flops": [5e11, 5e11, 1.3e12, 1.3e12]})
    words = "Training compute is not matched: 5 × 10¹¹ to 1.3 × 10¹² FLOPs a run."
    assert unmatched({None: rows}, "model.l_cycles", [1, 4]) == words
    assert unmatched({None: rows.assign(train_flops=5e11)}, "model.l_cycles", [1, 4]) == ""
    apart = {64: rows[:2], 128: rows[2:]}  # colours are not compared with each other
    assert unmatched(apart, "model.l_cycles", [1, 4]) == ""


def test_the_baseline_is_named_else_the_scales_recipe_else_the_papers() -> None:
    spec = figure(kind="ablation", x="model.halt_max_steps")
    values = [1, 2, 4, 8, 16]
    assert baseline_of(spec, values, {"model.halt_max_steps": 8}) == 8
    assert baseline_of(spec, [1, 2, 8], {"model.halt_max_steps": 7}) == 8
    assert baseline_of(spec, values, {}) == 16
    assert baseline_of(spec.model_copy(update={"baseline": 2}), values, {"model.halt_max_steps": 8}) == 2
    assert baseline_of(figure(kind="ablation", x="label"), ["first", "second"], {}) == "first"
