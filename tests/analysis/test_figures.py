"""What all figures share: files, footers, styles, ticks, colours, puzzles."""

import json
import re
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from tests.analysis.conftest import figure, saved
from tests.analysis.synthetic import measured
from trm.analysis.drawing import stack, styled
from trm.analysis.kinds import draw, fit_and_draw
from trm.analysis.kinds.common import BinaryLocator, canvas, colours, entry, legend, nice, panels
from trm.analysis.scales import fitting, round_values
from trm.analysis.tables import Table
from trm.analysis.traces import puzzles
from trm.analysis.words import compact
from trm.errors import UserError
from trm.study.tasks import spec_of

LAW = {"kind": "law", "x": "data.train_puzzles"}


def test_the_same_inputs_give_the_same_bytes(tables: dict[str, Table], tmp_path: Path) -> None:
    """Whatever the user's matplotlibrc says."""
    _, first = saved(tables, "data_size", tmp_path / "one/a.pdf", **LAW)
    with matplotlib.rc_context(
        {"text.usetex": True, "savefig.bbox": "tight", "lines.dashed_pattern": [9, 9]}
    ):
        _, second = saved(tables, "data_size", tmp_path / "two/a.pdf", **LAW)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


REFUSED = [
    ("data_size", LAW, "no --fit was made for auto of error against data.train_puzzles"),
    ("augmentation", {"kind": "surface", "form": "repeated_data"}, "no --table holds experiment data_size"),
    ("mixer", {"kind": "ablation", "x": "model.mixer", "baseline": "tanh"}, "baseline tanh is not a value"),
    ("mixer", {"kind": "curves", "metric": "train/colour"}, "no history of mixer has a column train/colour"),
    ("mixer", {"kind": "bins"}, "counted its puzzles by clues"),
    ("mixer", {"kind": "restarts"}, r"set evaluation\.restarts"),
    ("mixer", {"kind": "unroll"}, r"set evaluation\.unroll"),
    ("mixer", {"kind": "votes"}, "no evaluation of mixer let copies vote"),
]


@pytest.mark.parametrize(("experiment", "spec", "sentence"), REFUSED)
def test_a_figure_that_cannot_be_drawn_says_why(
    experiment: str, spec: dict[str, Any], sentence: str, tables: dict[str, Table]
) -> None:
    with styled(), pytest.raises(UserError, match=sentence):
        draw(figure(**spec), [tables[experiment]], [])


def test_missing_runs_are_said_in_the_figure(tables: dict[str, Table]) -> None:
    table = tables["mixer"]
    lost = Table(table.rows, table.curves, {**table.info, "missing": [{"run": "a", "seed": 0, "file": "x"}]})
    with styled():
        drawing = draw(figure(kind="halting"), [lost], [])
    assert "1 file missing" in drawing.caption
    assert any("incomplete" in text.get_text() for text in drawing.canvas.texts)


def test_panels_beside_one_another_stack_on_a_narrow_screen(tables: dict[str, Table], tmp_path: Path) -> None:
    spec = {"kind": "ablation", "x": "model.d_model", "second": ["wall_seconds"]}
    _, files = saved(tables, "model_size", tmp_path / "a.pdf", **spec)
    facts = json.loads(files[2].read_text())
    assert facts["svg"].startswith("<svg")
    assert "Exact accuracy" in facts["svg"]  # text is text
    wide, narrow = (
        re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', facts[key]) for key in ("svg", "narrow")
    )
    assert wide is not None
    assert narrow is not None
    assert float(narrow[1]) < float(wide[1])
    assert float(narrow[2]) > 2 * float(wide[2])
    _, files = saved(tables, "data_size", tmp_path / "b.pdf", **LAW)
    assert json.loads(files[2].read_text())["narrow"] == ""


def test_many_small_panels_stay_beside_one_another_on_a_narrow_screen() -> None:
    with styled():
        drawn, axes = canvas(7.0, 3.4, 2, 7)
        assert stack(drawn)
        drawn.canvas.draw()
    boxes = [axis.get_position() for axis in axes.flat]
    assert len({round(box.x0, 3) for box in boxes}) == 4
    order = [(-round(box.y0, 3), round(box.x0, 3)) for box in boxes]
    assert order == sorted(order)  # puzzle after puzzle, step after step
    assert not any(one.overlaps(two) for i, one in enumerate(boxes) for two in boxes[:i])


def test_a_legend_fits_a_narrow_screen() -> None:
    with styled():
        drawn, axes = panels(2, 2.0)
        legend(drawn, [entry(axes[0], f"a name of some length, {i}", marker="o") for i in range(4)], 4)
        assert stack(drawn)
        drawn.canvas.draw()
    (found,) = drawn.legends
    box = found.get_window_extent()
    assert [text.get_text()[-1] for text in found.get_texts()] == ["0", "1", "2", "3"]
    assert 0 <= box.x0 < box.x1 <= drawn.bbox.width


LONG = "a label of this grid point that says all that anybody could ever want to know about it, number"


def written(drawn: Any) -> list[Any]:
    """The boxes in pixels of titles, notes, legend entries and names of rows of a figure, once drawn."""
    drawn.canvas.draw()
    texts = [text for found in drawn.legends for text in found.get_texts()]
    for axis in drawn.axes:
        rows = axis.get_yticklabels() if axis.axison and axis.get_yticks().size < 7 else []
        texts += [*axis.texts, axis._left_title, *rows]
    return [text.get_window_extent() for text in texts if text.get_text()]


@pytest.mark.parametrize("kind", ["halting", "curves", "ablation", "restarts", "steps"])
@pytest.mark.parametrize("narrow", [False, True])
def test_long_labels_stay_on_the_canvas(kind: str, narrow: bool, tables: dict[str, Table]) -> None:
    table = tables["inference" if kind == "restarts" else "model_size"]
    if kind == "restarts":
        parts = [table.rows.assign(label=f"{LONG} {i}", run=table.rows["run"] + str(i)) for i in range(6)]
        rows = pd.concat(parts, ignore_index=True)
    else:
        rows = table.rows.assign(label=LONG + " " + table.rows["point"].astype(str))
    spec = figure(kind=kind, **({"x": "label"} if kind == "ablation" else {}))
    with styled():
        drawn = draw(spec, [Table(rows, table.curves, {**table.info, "coordinates": []})], []).canvas
        if narrow:
            stack(drawn)
        boxes = written(drawn)
    assert boxes
    for box in boxes:
        assert -1 <= box.x0 <= box.x1 <= drawn.bbox.width + 1
        assert -1 <= box.y0 <= box.y1 <= drawn.bbox.height + 1
    names = (
        [text.get_window_extent() for text in drawn.axes[0].get_yticklabels()] if kind == "ablation" else []
    )
    assert not any(one.overlaps(two) for i, one in enumerate(names) for two in names[:i])


def test_a_law_of_one_place_has_a_tick_there_and_its_small_lines_fit(tables: dict[str, Table]) -> None:
    points = [({"data.train_puzzles": 123, "model.d_model": d}, {0: 0.3, 1: 0.4}) for d in (16, 32)]
    with styled():
        drawn = fit_and_draw(figure(**LAW), "t", [measured(points)]).canvas
        boxes = written(drawn)
    (axes,) = drawn.axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["123"]
    assert max(box.x1 for box in boxes) <= drawn.bbox.width


def test_dollar_signs_of_a_study_are_text(tables: dict[str, Table], tmp_path: Path) -> None:
    table = tables["mixer"]
    named = table.rows.assign(label=table.rows["label"].str.replace("mixer=", "$1_"))
    with pytest.raises(ValueError, match="begins a formula in figures"):
        figure(kind="ablation", x="label", title="It costs $1 or $2")
    with styled():
        drawing = draw(figure(kind="ablation", x="label"), [Table(named, table.curves, table.info)], [])
        drawing.canvas.savefig(tmp_path / "a.png")
    shown = {text.get_text() for text in drawing.canvas.findobj(Text)}
    assert {r"\$1 mlp", r"\$1 attention"} <= shown


def test_the_style_is_left_as_it_was() -> None:
    with pytest.raises(UserError, match="does not exist"), styled("nowhere.mplstyle"):
        pass
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


def test_tick_labels_do_not_lie_on_one_another() -> None:
    drawn, axes = panels(3, 2.9)
    sizes = np.array([3890.0, 4610, 6430, 13900])
    assert fitting(axes[0], sizes, np.log(40), compact) == [6430, 13900]
    assert fitting(axes[0], sizes, np.log(4), compact) == [4610, 6430, 13900]
    assert not round_values(sizes)
    assert round_values(np.array([8.0, 128, 1024, 5600]))
    plt.close(drawn)


@pytest.mark.parametrize(
    ("task", "shown"),
    [("sudoku", {0: "", 1: "", 5: "4"}), ("maze", {1: "#", 5: "o"}), ("arc", {0: "", 1: "", 2: "0"})],
)
def test_tokens_are_those_of_the_data_set(task: str, shown: dict[int, str]) -> None:
    assert {token: spec_of(task).glyph(token) for token in shown} == shown


def test_puzzles_of_the_page_mark_what_is_given_and_wrong(tables: dict[str, Table]) -> None:
    traces = tables["inference"].info["traces"]
    found = puzzles(traces, 3)
    assert len(found) == 3
    for puzzle in found:
        assert (puzzle["rows"], puzzle["columns"], puzzle["box"]) == (4, 4, [2, 2])
        assert len(puzzle["steps"]) == len(puzzle["wrong"]) == len(puzzle["halt"])
        for step, bad in zip(puzzle["steps"], puzzle["wrong"]):
            given = [i for i in range(16) if puzzle["given"][i] and i not in bad]
            assert all(puzzle["question"][i] == step[i] != "" for i in given)
    (arc,) = puzzles([{**traces[0], "data": {"task": "arc"}}], 1)
    assert any(arc["question"])
    assert not any(arc["given"])  # the answer is another grid


def test_ticks_of_memory_are_round_in_its_own_unit() -> None:
    places = BinaryLocator(5).tick_values(410 * 2**20, 430 * 2**20)
    assert all(float(place / 2**20).is_integer() for place in places)
