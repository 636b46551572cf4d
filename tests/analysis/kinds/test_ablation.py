"""`ablation`: the power of its seeds, and what values are compared with."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from tests.analysis.conftest import figure
from tests.analysis.synthetic import measured
from trm.analysis.drawing import styled
from trm.analysis.kinds import draw
from trm.analysis.kinds.ablation import baseline_of, power
from trm.analysis.kinds.common import Drawing
from trm.analysis.stats import Mean, detectable, holm, mean
from trm.analysis.words import changed
from trm.errors import UserError


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


D, LR = "model.d_model", "training.lr"


def ablated(points: list[Any], metric: str = "exact_accuracy", **spec: Any) -> Drawing:
    with styled():
        return draw(figure(kind="ablation", y=metric, **spec), [measured(points, metric)], [])


@settings(max_examples=25, deadline=None)
@given(
    st.sets(st.tuples(st.sampled_from((16, 32, 64)), st.sampled_from((1, 2)), st.integers(0, 3)), max_size=20)
)
def test_an_effect_is_that_of_the_same_seeds_and_points(lost: set[tuple[int, int, int]]) -> None:
    """Rate 2 adds 0.05 to every run; whichever runs fail, that is its effect."""
    kept = {
        (d, rate): {s: d / 100 + 0.01 * s + 0.05 * (rate == 2) for s in range(4) if (d, rate, s) not in lost}
        for d, rate in product((16, 32, 64), (1, 2))
    }
    pairs = {(d, s) for d in (16, 32, 64) for s in range(4) if all(s in kept[d, rate] for rate in (1, 2))}
    rates = [any(kept[d, rate] for d in (16, 32, 64)) for rate in (1, 2)]
    assume(pairs and all(rates))
    drawing = ablated(
        [({D: d, LR: rate}, values) for (d, rate), values in kept.items() if values], x=LR, baseline=1
    )
    (finding,) = drawing.findings
    assert finding.value == pytest.approx(0.05)
    assert finding.pairs == len({s for _, s in pairs})
    number = sum(map(len, kept.values())) - 2 * len(pairs)
    crossed = any(
        len({d for d in (16, 32, 64) if s in kept[d, rate]}) > 1 for s in range(4) for rate in (1, 2)
    )
    assert (f"Left out: {number} of" in drawing.sentence) == (number > 0 and crossed)


def test_seeds_are_the_sample_also_of_several_points() -> None:
    points = [
        ({D: d, LR: rate}, {s: d / 100 + 0.01 * s for s in range(3)}) for d in (16, 64) for rate in (1, 2)
    ]
    left = ablated(points, x=LR, baseline=1).canvas.axes[0]
    faint = [line.get_xdata() for line in left.lines if line.get_alpha() == 0.4]
    assert [sorted(line) for line in faint] == [pytest.approx([0.40, 0.41, 0.42])] * 2  # not six values


def test_values_that_share_no_point_are_refused() -> None:
    points = [
        ({D: d, LR: rate}, dict.fromkeys(range(3), 0.5)) for d, rate in ((16, 1), (32, 1), (64, 2), (128, 2))
    ]
    with pytest.raises(
        UserError, match=r"t measured no seed and width d with every learning rate.* set `hue: model.d_model`"
    ):
        ablated(points, x=LR, baseline=1)


def test_effects_and_interactions_are_corrected_together() -> None:
    """Holm over all of them by scipy."""
    rng = np.random.default_rng(0)
    values = {
        (d, rate): 0.5 + 0.004 * rate + 0.01 * rng.normal(size=6) for d in (16, 64) for rate in (1, 2, 3)
    }
    points = [({D: d, LR: rate}, dict(enumerate(row))) for (d, rate), row in values.items()]
    drawing = ablated(points, x=LR, baseline=1, hue=D)
    effects = {(d, rate): values[d, rate] - values[d, 1] for d in (16, 64) for rate in (2, 3)}
    tested = [*effects.values(), *(effects[64, rate] - effects[16, rate] for rate in (2, 3))]
    assert [item.kind for item in drawing.findings] == ["difference"] * 4 + ["interaction"] * 2
    wanted = holm([ttest_1samp(item, 0).pvalue for item in tested])
    assert [item.p for item in drawing.findings] == pytest.approx(wanted)
    size = detectable([mean(item) for item in effects.values()], 6)
    assert f"difference of {changed('exact_accuracy', size, sign=False)} (80 % power)" in drawing.sentence


def test_an_interaction_is_that_of_shared_points() -> None:
    """The effect is 0.1 at one layer and 0.3 at two, with each of two batches; one of these has one layer alone."""
    points = []
    for batch, layers, rate in product((32, 64), (1, 2), (1, 2)):
        place = {"training.batch_size": batch, "model.layers": layers, LR: rate}
        values = {s: 0.2 + (rate == 2) * (0.2 * layers - 0.1) + 0.01 * s * rate for s in range(3)}
        points += [(place, values)] * ((batch, layers) != (64, 2))
    drawing = ablated(points, x=LR, baseline=1, hue="training.batch_size")
    assert [item.value for item in drawing.findings] == pytest.approx([0.21, 0.11, 0.0])


def test_seeds_that_never_reach_the_target_are_said() -> None:
    slow = {0: 900.0, 1: 920.0, 2: 935.0, 3: np.nan, 4: np.nan, 5: np.nan}
    points = [({"model.mixer": "a"}, {s: 1000.0 + s for s in range(6)}), ({"model.mixer": "b"}, slow)]
    said = ablated(points, "steps_to_80", x="model.mixer", baseline="a").sentence
    assert said.endswith("Left out are runs that never reach the target: token mixer b (3 of 6).")
    points[0] = ({"model.mixer": "a"}, dict.fromkeys(range(3), np.nan) | {5: 1000.0})
    said = ablated(points, "steps_to_80", x="model.mixer", baseline="a").sentence
    assert (
        "No pair of equal seeds has steps to 80 % validation accuracy with both token mixer b and token mixer a."
        in said
    )
