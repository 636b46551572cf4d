"""`scaling_laws`: panels of several experiments."""

from __future__ import annotations

from tests.analysis.conftest import Drawn, figure, inputs
from trm.analysis.drawing import styled
from trm.analysis.kinds import draw
from trm.analysis.tables import Table

LAWS = [
    {"experiment": "model_size", "x": "parameters"},
    {"experiment": "data_size", "x": "data.train_puzzles"},
    {"experiment": "inference", "x": "flops_per_puzzle"},
]


def test_it_is_drawn(drawn: Drawn) -> None:
    drawing = drawn("", kind="scaling_laws", panels=LAWS)
    assert [claim.subject for claim in drawing.claims] == [
        "parameters",
        "unique training puzzles",
        "test-time compute",
    ]


def test_a_panel_without_results_says_so_and_the_others_are_drawn(tables: dict[str, Table]) -> None:
    spec = figure(kind="scaling_laws", panels=[*LAWS, {"experiment": "maze", "x": "parameters"}])
    given, fits = inputs({**tables, "maze": tables["mixer"]}, "", figure(kind="scaling_laws", panels=LAWS))
    with styled():
        drawing = draw(spec, given, fits)
    words = " ".join(text.get_text() for axes in drawing.canvas.axes for text in axes.texts)
    assert "no --table holds experiment maze" in " ".join(words.split())


def test_a_panel_and_the_same_law_figure_share_one_fit() -> None:
    law = figure(kind="law", x="parameters")
    laws = figure(kind="scaling_laws", panels=[LAWS[0], LAWS[0]])
    assert laws.fits() == law.fits("model_size")
    assert laws.experiments() == ("model_size",)
