"""`scaling_laws`: panels of several experiments."""

from itertools import product

import numpy as np
import pytest

from tests.analysis.conftest import Drawn, figure, inputs
from tests.analysis.synthetic import measured
from trm.analysis.drawing import styled
from trm.analysis.kinds import draw, fit_and_draw
from trm.analysis.tables import Table

PANELS = [
    {"experiment": "isoflop", "show": "curves"},
    {"experiment": "isoflop", "show": "loss"},
    {"experiment": "isoflop", "show": "best", "series": "first"},
    {"experiment": "isoflop", "show": "best", "y": "error", "series": "second"},
    {"experiment": "inference", "show": "attempts"},
]


def test_one_message_a_panel_and_one_height_a_diamond(drawn: Drawn) -> None:
    drawing = drawn("", kind="scaling_laws", panels=PANELS)
    titles = [axes.get_title("left").strip() for axes in drawing.canvas.axes]
    assert [title[0] for title in titles] == ["a", "b", "c", "d"]
    assert all(len(title.split()) <= 10 for title in titles)  # nine words after the letter
    a, b, c, _ = drawing.canvas.axes
    assert a.get_ylim() == b.get_ylim()
    names = " ".join(text.get_text() for text in c.texts)
    assert "first" in names
    assert "second" in names
    sizes = {text.get_fontsize() for axes in drawing.canvas.axes for text in axes.texts}
    assert min(sizes) >= 8


def test_a_single_panel_is_one_column_wide(drawn: Drawn) -> None:
    assert drawn("", kind="scaling_laws", panels=PANELS[:1]).canvas.get_figwidth() == pytest.approx(3.4)


def test_a_panel_without_results_says_so_and_the_others_are_drawn(tables: dict[str, Table]) -> None:
    spec = figure(kind="scaling_laws", panels=[*PANELS, {"experiment": "maze", "show": "curves"}])
    given, fits = inputs({**tables, "maze": tables["mixer"]}, "", figure(kind="scaling_laws", panels=PANELS))
    with styled():
        drawing = draw(spec, given, fits)
    words = " ".join(text.get_text() for axes in drawing.canvas.axes for text in axes.texts)
    assert "no --table holds experiment maze" in " ".join(words.split())


def test_a_panel_and_the_same_isoflop_figure_share_one_fit() -> None:
    laws = figure(kind="scaling_laws", panels=PANELS[:3])
    assert laws.fits() == figure(kind="isoflop").fits("isoflop")
    assert laws.experiments() == ("isoflop",)


@pytest.mark.parametrize(
    ("exponent", "title"),
    [
        (-0.4, "Best loss falls as a power of compute"),
        (0.4, "Best loss rises as a power of compute"),
        (0.0, "Best loss over compute"),
    ],
)
def test_a_title_says_only_what_is_found(exponent: float, title: str) -> None:
    rng, points = np.random.default_rng(1), []
    for budget, far in product((1e11, 3e11, 1e12, 3e12, 1e13), (0.25, 0.5, 1.0, 2.0, 4.0)):
        best = 0.3 * (budget / 1e12) ** exponent * np.exp(0.08 * np.log(far) ** 2)
        values = {seed: best * np.exp(0.03 * rng.normal()) for seed in range(4)}
        points.append(({"model.d_model": 16 * (budget / 1e11) ** 0.5 * far, "train_flops": budget}, values))
    table = measured(points, "cross_entropy")
    spec = figure(kind="scaling_laws", panels=[{"experiment": "t", "show": "loss"}])
    with styled():
        drawing = fit_and_draw(spec, "t", [table])
    assert drawing.canvas.axes[0].get_title("left") == title
