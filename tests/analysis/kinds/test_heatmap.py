"""`heatmap`: each optimiser at its best, a scale that does not exaggerate."""

import numpy as np
import pandas as pd
import pytest

from tests.analysis.conftest import Drawn, figure
from trm.analysis.kinds.heatmap import best_of, scale_of


def test_each_optimiser_is_judged_at_its_best_rate() -> None:
    """A rate at which nothing is learnt is no finding about the optimiser."""
    rng = np.random.default_rng(0)
    columns = ["training.lr", "model.layers", "seed", "exact_accuracy"]
    rows = [
        (rate, layers, seed, (0.9 if rate == layers == 2 else 0.5) + 0.001 * rng.normal())
        for rate in (1, 2)
        for layers in (1, 2)
        for seed in range(5)
    ]
    found = pd.DataFrame(rows, columns=columns)
    findings = best_of(found, figure(kind="heatmap", x="training.lr", y="model.layers"))
    assert [finding.sign for finding in findings] == [-1]  # of 3 other cells one is the best of its layers
    assert findings[0].subject.endswith("and 1 layer")


def test_the_colours_span_the_means() -> None:
    norm = scale_of([np.array([[0.50, 0.51]]), np.array([[0.6, np.nan]])], log=False)
    assert (norm.vmin, norm.vmax) == (0.5, 0.6)
    loss = scale_of([np.array([[0.09, 1.1]])], log=True)
    assert loss(0.09 * (1.1 / 0.09) ** 0.5) == pytest.approx(0.5)  # logarithmic
    assert scale_of([np.array([[0.5, 0.5]])], log=False).vmax > 0.5


def test_the_colour_bar_has_regular_ticks(drawn: Drawn) -> None:
    drawing = drawn("recursion", kind="heatmap", x="model.l_cycles", y="model.h_cycles")
    bar = next(axes for axes in drawing.canvas.axes if axes.get_label() == "<colorbar>")
    steps = np.diff(bar.get_yticks())
    assert np.allclose(steps, steps[0])
