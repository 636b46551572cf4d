"""`scaling_laws`: panels of several experiments."""

from tests.analysis.conftest import Drawn, figure, inputs
from trm.analysis.drawing import styled
from trm.analysis.kinds import draw
from trm.analysis.tables import Table

LAWS = [
    {"experiment": "model_size", "x": "parameters"},
    {"experiment": "data_size", "x": "data.train_puzzles"},
    {"experiment": "inference", "x": "flops_per_puzzle"},
]
RESTARTS = {"experiment": "inference", "restarts": True}


def test_it_is_drawn(drawn: Drawn) -> None:
    subjects = [claim.subject for claim in drawn("", kind="scaling_laws", panels=LAWS).claims]
    assert subjects == ["parameters", "unique training puzzles", "test-time compute"]


def test_best_choices_share_a_panel_and_titles_say_what_was_found(drawn: Drawn) -> None:
    best = {"experiment": "isoflop", "best": "model.d_model", "y": "cross_entropy"}
    drawing = drawn("", kind="scaling_laws", panels=[LAWS[0], best, {**best, "y": "error"}, RESTARTS])
    titles = [" ".join(axes.get_title("left").split()) for axes in drawing.canvas.axes]
    assert len(titles) == 3
    assert titles[0].startswith("a Error falls ")
    assert "best" in titles[1]  # the fits of two best choices stand in one panel
    assert titles[2].startswith("c 4 attempts solve ")
    dashed = [line for line in drawing.canvas.axes[0].lines if line.get_linestyle() == "--"]
    assert dashed, "the best rival is drawn"


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
