"""`heatmap`: the best cell within its spread, a scale that does not exaggerate, the optimum."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.analysis.conftest import Drawn
from trm.analysis.kinds.heatmap import heatmap_sentence, optimum_sentence, scale_of


def cells(best: float, noise: float) -> pd.DataFrame:
    rng = np.random.default_rng(0)

    def cell(t: int, n: int) -> float:
        return (best if t == n == 2 else 0.5) + noise * float(rng.normal())

    rows = [
        {
            "model.h_cycles": t,
            "model.l_cycles": n,
            "seed": seed,
            "exact_accuracy": (best if t == n == 2 else 0.5) + noise * rng.normal(),
        }
        for t in (1, 2)
        for n in (1, 2)
        for seed in range(5)
    ]
    return pd.DataFrame(rows)


def test_the_best_cell_is_not_called_best_within_the_spread() -> None:
    names = ("model.l_cycles", "model.h_cycles", "exact_accuracy")
    near = heatmap_sentence(cells(0.51, 0.1), *names)
    assert "not established to differ from 3 of 3 other cells" in near
    clear = heatmap_sentence(cells(0.9, 0.001), *names)
    assert "at inner cycles n = 2 and outer cycles T = 2" in clear
    assert "differs from each of 3 other cells" in clear


def test_noise_is_not_spread_over_the_whole_colour_scale() -> None:
    centre, half = np.array([[0.50, 0.51]]), np.array([[0.05, 0.05]])
    norm = scale_of({None: (centre, half)}, share=True)
    assert norm.vmax - norm.vmin == pytest.approx(0.4)
    wide = scale_of({None: (np.array([[0.1, 0.95]]), half)}, share=True)
    assert (wide.vmin, wide.vmax) == (pytest.approx(0.1), pytest.approx(0.95))


@pytest.mark.parametrize(
    ("slope", "bounds", "words"),
    [(0.5, [0.3, 0.7], "rises"), (-0.5, [-0.7, -0.3], "falls"), (0.1, [-0.3, 0.5], "shows no trend")],
)
def test_the_optimum_moves(slope: float, bounds: list[float], words: str) -> None:
    law = {
        "parameters": {"A": 1.0, "a": slope},
        "intervals": {"a": bounds},
        "enough_points": True,
        "points": 4,
    }
    group = {"optima": [{"second": 64.0, "edge": False}, {"second": 256.0, "edge": True}], "law": law}
    text = optimum_sentence(group, "training.lr", "training.batch_size")
    assert words in text
    assert "batch size 256 the best learning rate lies at the edge" in text
    few = optimum_sentence(
        {**group, "law": {**law, "enough_points": False}}, "training.lr", "training.batch_size"
    )
    assert "4 optima inside the grid cannot test a power law" in few


def test_it_is_drawn_with_regular_ticks_on_its_colour_bar(drawn: Drawn) -> None:
    drawing = drawn("recursion", kind="heatmap", x="model.l_cycles", y="model.h_cycles")
    bar = next(axes for axes in drawing.canvas.axes if axes.get_label() == "<colorbar>")
    steps = np.diff(bar.get_yticks())
    assert np.allclose(steps, steps[0])
    drawn("blocks", kind="heatmap", x="model.d_model", y="model.layers")
    best = drawn("lr_batch", kind="heatmap", x="training.lr", y="training.batch_size", optimum=True)
    assert best.answer.startswith("2 optima inside the grid cannot test a power law.")
