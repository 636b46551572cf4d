"""`ablation`: the power of its seeds, and what values are compared with."""

from tests.analysis.conftest import figure
from trm.analysis.kinds.ablation import baseline_of, power
from trm.analysis.stats import Mean, detectable


def test_too_few_seeds_are_said() -> None:
    far = Mean(0.0, (-2.0, 2.0), 3)
    assert "too few to show any difference" in power([far], detectable([far]), "exact_accuracy")


def test_the_baseline_is_named_else_the_scales_recipe_else_the_papers() -> None:
    spec = figure(kind="ablation", x="model.halt_max_steps")
    values = [1, 2, 4, 8, 16]
    assert baseline_of(spec, values, {"model.halt_max_steps": 8}) == 8
    assert baseline_of(spec, [1, 2, 8], {"model.halt_max_steps": 7}) == 8
    assert baseline_of(spec, values, {}) == 16
    assert baseline_of(spec.model_copy(update={"baseline": 2}), values, {"model.halt_max_steps": 8}) == 2
    assert baseline_of(figure(kind="ablation", x="label"), ["first", "second"], {}) == "first"
