"""Every figure kind is drawn from real tables; files are complete and the same twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from PIL import Image
from pypdf import PdfReader

from tests.analysis.conftest import figure
from trm.analysis.figures import draw, save, styled
from trm.analysis.figures.ablation import baseline_of
from trm.analysis.figures.base import BinaryLocator, colours, nice
from trm.analysis.figures.steps import pick
from trm.analysis.fits import fit_table
from trm.analysis.specs import Figure
from trm.analysis.tables import Table
from trm.analysis.tables.store import merge
from trm.analysis.traces import glyph, puzzles, wrong
from trm.analysis.words import point_name, signed
from trm.errors import UserError

LAWS = [
    {"experiment": "model_size", "x": "parameters"},
    {"experiment": "data_size", "x": "data.train_puzzles"},
    {"experiment": "inference", "x": "flops_per_puzzle"},
]
KINDS = {
    "law": (
        "data_size",
        {"kind": "law", "x": "data.train_puzzles", "target": 0.85, "reported": [{"x": 1000, "y": 0.126}]},
    ),
    "law-hue": ("compute", {"kind": "law", "x": "train_flops", "hue": "model.d_model", "envelope": True}),
    "law-entropy": ("data_size", {"kind": "law", "x": "data.train_puzzles", "y": "cross_entropy"}),
    "law-copies": ("augmentation", {"kind": "law", "x": "data.augmentations"}),
    "law-plain": ("recursion", {"kind": "law", "x": "effective_depth", "fit": None}),
    "ablation": (
        "mixer",
        {"kind": "ablation", "x": "model.mixer", "second": ["wall_seconds", "peak_memory_bytes"]},
    ),
    "ablation-hue": ("ema", {"kind": "ablation", "x": "training.ema", "hue": "training.batch_size"}),
    "ablation-weights": ("ema", {"kind": "ablation", "x": "evaluation.weights"}),
    "heatmap": ("recursion", {"kind": "heatmap", "x": "model.l_cycles", "y": "model.h_cycles"}),
    "optimum": (
        "lr_batch",
        {"kind": "heatmap", "x": "training.lr", "y": "training.batch_size", "optimum": True},
    ),
    "curves": ("data_size", {"kind": "curves", "metrics": ["train/loss"]}),
    "agreement": ("mixer", {"kind": "agreement"}),
    "curves-flops": ("compute", {"kind": "curves", "against": "flops", "gap": False}),
    "batch-blocks": ("batch_blocks", {"kind": "batch"}),
    "law-sources": (
        "",
        {"kind": "law", "x": "parameters", "hue": "experiment", "sources": ["model_size", "recursion"]},
    ),
    "law-blocks": ("blocks", {"kind": "law", "x": "parameters"}),
    "ablation-blocks": ("blocks", {"kind": "ablation", "x": "model.d_model"}),
    "pareto-blocks": ("blocks", {"kind": "pareto"}),
    "heatmap-blocks": ("blocks", {"kind": "heatmap", "x": "model.d_model", "y": "model.layers"}),
    "pareto": ("model_size", {"kind": "pareto", "costs": ["wall_seconds"]}),
    "frontier": ("inference", {"kind": "frontier"}),
    "halting": ("mixer", {"kind": "halting"}),
    "batch": ("batch_size", {"kind": "batch"}),
    "steps": ("inference", {"kind": "steps"}),
    "repeated": ("augmentation", {"kind": "repeated"}),
    "joint": ("compute", {"kind": "joint"}),
    "scaling_laws": ("", {"kind": "scaling_laws", "panels": LAWS}),
    "compute_frontier": ("", {"kind": "compute_frontier", "sources": ["model_size", "inference"]}),
}


def inputs(
    tables: dict[str, Table], experiment: str, spec: Figure
) -> tuple[list[Table], list[dict[str, Any]]]:
    """Tables and fits of a figure, as the rules would hand them over."""
    given = [tables[name] for name in spec.experiments(experiment)]
    fits = []
    for wanted in spec.fits(experiment):
        quick = wanted.model_copy(update={"bootstrap": 40})
        fit = fit_table(merge([tables[name] for name in wanted.experiments]), quick)
        fits.append({**fit, "spec": wanted.model_dump(mode="json")})
    return given, fits


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_drawn_with_its_words_and_provenance(
    name: str, tables: dict[str, Table], tmp_path: Path
) -> None:
    experiment, values = KINDS[name]
    spec = figure(**values)
    given, fits = inputs(tables, experiment, spec)
    out = tmp_path / f"{name}.pdf"
    with styled():
        files = save(draw(spec, given, fits), out)
    facts = json.loads(files[2].read_text())
    assert all(facts[key] for key in ("title", "caption", "sentence", "answer", "alt"))
    assert "nan" not in facts["sentence"]
    assert "None" not in facts["sentence"]
    page = PdfReader(out)
    assert page.metadata is not None
    assert page.metadata.title == facts["title"]
    for word in ("study synthetic, scale laptop", " seed", "data ", "commit 0123456789ab"):
        assert word in page.metadata.subject
        assert word in page.pages[0].extract_text()
    with Image.open(files[1]) as picture:
        assert min(picture.size) > 300


def test_the_same_inputs_give_the_same_bytes(tables: dict[str, Table], tmp_path: Path) -> None:
    spec = figure(**KINDS["law"][1])
    given, fits = inputs(tables, "data_size", spec)
    with styled():
        first = [path.read_bytes() for path in save(draw(spec, given, fits), tmp_path / "a.pdf")]
        second = [path.read_bytes() for path in save(draw(spec, given, fits), tmp_path / "b.pdf")]
    assert first == second


def test_a_figure_without_its_fit_or_table_says_which(tables: dict[str, Table]) -> None:
    spec = figure(kind="law", x="data.train_puzzles")
    with (
        styled(),
        pytest.raises(UserError, match="no --fit was made for auto of error against data.train_puzzles"),
    ):
        draw(spec, [tables["data_size"]], [])
    with styled(), pytest.raises(UserError, match="no --table holds experiment data_size"):
        draw(figure(**KINDS["repeated"][1]), [tables["augmentation"]], [])
    with styled(), pytest.raises(UserError, match="baseline tanh is not a value"):
        draw(figure(kind="ablation", x="model.mixer", baseline="tanh"), [tables["mixer"]], [])
    with styled(), pytest.raises(UserError, match="no history of mixer has a column train/colour"):
        draw(figure(kind="curves", metric="train/colour"), [tables["mixer"]], [])
    with pytest.raises(UserError, match="does not exist"), styled("nowhere.mplstyle"):
        pass


def test_a_panel_without_results_says_so_and_the_others_are_drawn(tables: dict[str, Table]) -> None:
    spec = figure(kind="scaling_laws", panels=[*LAWS, {"experiment": "maze", "x": "parameters"}])
    given, fits = inputs({**tables, "maze": tables["mixer"]}, "", figure(kind="scaling_laws", panels=LAWS))
    with styled():
        drawing = draw(spec, given, fits)
    words = " ".join(text.get_text() for axes in drawing.canvas.axes for text in axes.texts)
    assert "no --table holds" in words
    assert "experiment maze" in words.replace("\n", " ")


def test_missing_runs_are_said_in_the_figure(tables: dict[str, Table]) -> None:
    table = tables["mixer"]
    lost = Table(table.rows, table.curves, {**table.info, "missing": [{"run": "a", "seed": 0, "file": "x"}]})
    with styled():
        drawing = draw(figure(kind="halting"), [lost], [])
    assert "1 file missing" in drawing.caption
    assert any("incomplete" in text.get_text() for text in drawing.canvas.texts)


def test_the_style_is_left_as_it_was() -> None:
    before = matplotlib.rcParams["axes.grid"]
    with styled():
        assert matplotlib.rcParams["axes.grid"]
    assert matplotlib.rcParams["axes.grid"] == before


def test_colours_and_ticks() -> None:
    assert len(set(colours(["a", "b", "c"]).values())) == 3
    assert len(set(colours(list(range(12))).values())) == 12
    assert nice(90, 1100) == [100, 200, 500, 1000]
    wide = nice(1e3, 1e15)
    assert 4 <= len(wide) <= 8
    assert min(wide) >= 1e3 * (1 - 1e-9)


def test_steps_shown_are_first_last_and_the_most_changing() -> None:
    trace = {"answer": [2, 3, 4], "steps": [[3, 2, 2], [3, 2, 2], [2, 3, 2], [2, 3, 2], [2, 3, 4]]}
    errors = wrong(trace)
    assert errors.sum(axis=1).tolist() == [3, 3, 1, 1, 0]
    assert pick(errors, 3) == [0, 2, 4]
    assert pick(errors, 9) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("token", "task", "shown"),
    [
        (1, "sudoku", ""),
        (5, "sudoku", "4"),
        (1, "maze", "#"),
        (5, "maze", "o"),
        (2, "arc", "0"),
        (1, "arc", ""),
        (0, "sudoku", ""),
    ],
)
def test_tokens_are_those_of_the_data_set(token: int, task: str, shown: str) -> None:
    assert glyph(token, task) == shown


def test_puzzles_of_the_page_mark_what_is_given_and_wrong(tables: dict[str, Table]) -> None:
    found = puzzles(tables["inference"].info["traces"], 3)
    assert len(found) == 3
    for puzzle in found:
        assert (puzzle["rows"], puzzle["columns"], puzzle["box"]) == (4, 4, [2, 2])
        assert len(puzzle["steps"]) == len(puzzle["wrong"]) == len(puzzle["halt"])
        for step, bad in zip(puzzle["steps"], puzzle["wrong"]):
            assert all(
                puzzle["given"][i] == step[i] for i in range(16) if puzzle["given"][i] and i not in bad
            )


def test_the_baseline_is_named_else_the_scales_recipe_else_the_papers() -> None:
    spec = figure(kind="ablation", x="model.halt_max_steps")
    values = [1, 2, 4, 8, 16]
    assert baseline_of(spec, values, {"model.halt_max_steps": 8}) == 8
    assert baseline_of(spec, [1, 2, 8], {"model.halt_max_steps": 7}) == 8
    assert baseline_of(spec, values, {}) == 16
    assert baseline_of(spec.model_copy(update={"baseline": 2}), values, {"model.halt_max_steps": 8}) == 2
    assert baseline_of(figure(kind="ablation", x="label"), ["first", "second"], {}) == "first"


def test_ticks_of_memory_are_round_in_its_own_unit() -> None:
    places = BinaryLocator(5).tick_values(410 * 2**20, 430 * 2**20)
    assert all(float(place / 2**20).is_integer() for place in places)


def test_grid_points_have_short_names_and_differences_true_signs() -> None:
    assert point_name("h_cycles=1, l_cycles=2") == "T=1, n=2"
    assert point_name("fixed, FLOPs of (1,1) to (2,2)") == "fixed, FLOPs of (1,1) to (2,2)"
    assert [signed(value) for value in (-0.5, 0.0, 2.0)] == ["−0.5", "0", "+2"]
