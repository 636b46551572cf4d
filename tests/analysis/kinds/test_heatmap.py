"""`heatmap`: each optimiser at its best, a scale that does not exaggerate."""

from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_rel

from tests.analysis.conftest import Drawn, figure
from tests.analysis.synthetic import measured
from trm.analysis.drawing import styled
from trm.analysis.kinds import draw
from trm.analysis.kinds.heatmap import best_of, scale_of
from trm.analysis.stats import holm


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
    findings = best_of({None: found}, figure(kind="heatmap", x="training.lr", y="model.layers"))
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


def maps(
    rng: np.random.Generator, kind: Any, hues: int = 2, cells: int = 3, seeds: int = 6
) -> dict[Any, pd.DataFrame]:
    """Maps whose cells differ by nothing but their seeds."""
    places = list(product(range(cells), range(2), range(seeds)))
    frame = pd.DataFrame(places, columns=[kind.x, kind.y, "seed"])
    return {hue: frame.assign(**{kind.z: 0.3 + 0.02 * rng.normal(size=len(frame))}) for hue in range(hues)}


def test_the_winner_is_tested_as_one_that_the_results_chose() -> None:
    """Holm over all pairs of cells of all maps by scipy; of equal cells hardly a study finds a difference."""
    kind = figure(kind="heatmap", x="model.l_cycles", y="model.h_cycles", z="cross_entropy")
    rng = np.random.default_rng(0)
    parts, raw, shown = maps(rng, kind), [], []
    for rows in parts.values():
        values = rows.pivot_table(index="seed", columns=[kind.x, kind.y], values=kind.z).to_numpy()
        order = np.argsort(-values.mean(axis=0))
        for worse, better in combinations(order, 2):
            raw.append(ttest_rel(values[:, worse], values[:, better]).pvalue)
            shown.append(better == order[-1])
    found = best_of(parts, kind)
    assert [item.p for item in found] == pytest.approx(np.array(holm(raw), float)[shown])
    claims = sum(any(item.sign for item in best_of(maps(rng, kind, 1, 4), kind)) for _ in range(40))
    assert claims <= 4  # 5 % of 40; twice as many is rare


def test_the_fewest_steps_are_the_best_pair() -> None:
    rng, points = np.random.default_rng(0), []
    for n, t in product((1, 2), (1, 2)):
        place = {"model.l_cycles": n, "model.h_cycles": t}
        points.append((place, {s: 100.0 * (n + t) + rng.normal() for s in range(4)}))
    kind = figure(kind="heatmap", x="model.l_cycles", y="model.h_cycles", z="steps_to_80")
    with styled():
        drawing = draw(kind, [measured(points, "steps_to_80")], [])
    assert {item.against for item in drawing.findings} == {"the best pair (1/1)"}
    assert {item.sign for item in drawing.findings} == {1}
    assert drawing.canvas.axes[0].collections[0].get_cmap().name == "cividis_r"


def test_cells_are_compared_at_the_points_that_all_have() -> None:
    """The largest budget failed at one width; width has no effect."""
    rng, points = np.random.default_rng(0), []
    for d, (budget, level) in product((16, 64), ((1, 0.2), (2, 0.5), (3, 0.9))):
        place = {"model.d_model": d, "model.layers": 1, "training.flops": budget}
        points += [(place, {s: level + 0.01 * rng.normal() for s in range(3)})] * ((d, budget) != (16, 3))
    with styled():
        drawing = draw(figure(kind="heatmap", x="model.d_model", y="model.layers"), [measured(points)], [])
    assert abs(drawing.findings[0].value) < 0.02
    assert drawing.sentence.endswith(
        "Left out: 3 of 15 measurements, whose seed and training compute not every width d and layers has."
    )
    shown = [text.get_text() for text in drawing.canvas.axes[0].texts]
    assert all(text.startswith("3") for text in shown)  # of the lower two budgets, 35 %
