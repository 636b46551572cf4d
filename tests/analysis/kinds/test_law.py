"""`law`: words follow the fit; a law is drawn only where the points support it."""

from typing import Any

import pytest

from tests.analysis.conftest import Drawn, figure
from tests.analysis.synthetic import measured
from trm.analysis.drawing import styled
from trm.analysis.fits.data import gather
from trm.analysis.kinds import fit_and_draw
from trm.analysis.laws import equation, law_findings
from trm.analysis.tables import Table
from trm.errors import UserError


def law(slope: float, bounds: list[float], chosen: str = "power_law", **more: Any) -> dict[str, Any]:
    """A group of fit.json."""
    parameters = {"E": 0.05, "A": 2.0, "a": slope}
    intervals = {"E": more.pop("floor", [0.04, 0.06]), "A": [1.0, 3.0], "a": bounds}
    form = {"parameters": parameters, "intervals": intervals, "held_out": None, **more}
    means = {"x": [[100.0, 1000.0]], "y": [0.4, 0.1]}
    group = {"chosen": chosen, "forms": {chosen: form}, "range": [[100.0, 1000.0]], "points": 6}
    return {**group, "means": means, "interval": 0.95, "doubts": []}


def told(group: dict[str, Any]) -> str:
    return " ".join(item.text for item in law_findings(group, "data.train_puzzles", "error"))


FLOOR = "Error with unlimited unique training puzzles is 5.0 % [4.0, 6.0]."
NEVER = {"accuracy": 0.85, "x": None, "interval": [None, None]}


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (law(-0.5, [-0.6, -0.4]), "Error rises as unique training puzzles to the power 0.50 [0.40, "),
        (law(0, [0, 0], "constant"), "No trend of error is established"),
        (law(0.5, [0.4, 0.6], target=NEVER), "is never reached"),
        (law(0.5, [0.4, 0.6], "power_law_floor"), FLOOR),
    ],
)
def test_findings_that_no_figure_of_the_small_study_has(group: dict[str, Any], words: str) -> None:
    assert words in told(group)


def test_floors_are_found_only_where_their_interval_stays_clear_of_zero() -> None:
    assert "unlimited" not in told(law(0.5, [0.4, 0.6], "power_law_floor", floor=[1e-9, 0.06]))


def test_the_equation_is_stated_at_a_round_place() -> None:
    group = law(0.5, [0.4, 0.6], reference={"x": 200.0, "A": 0.141, "interval": [0.12, 0.16]})
    text = equation(group, "data.train_puzzles", "error")
    assert "(D / 200)" in text
    assert "A = 14.1 % [12.0, 16.0]" in text


def test_a_second_axis_of_the_grid_is_the_hue_and_a_third_one_is_refused() -> None:
    def grid(*widths: int, steps: tuple[int, ...] = (4,)) -> Table:
        return measured(
            [
                ({"data.train_puzzles": n, "model.d_model": d, "training.steps": s}, {0: 0.5, 1: 0.6})
                for n in (10, 100, 1000)
                for d in widths
                for s in steps
            ]
        )

    spec, one = figure(kind="law", x="data.train_puzzles"), figure(kind="law", x="parameters")
    with styled():
        drawing = fit_and_draw(spec, "t", [grid(16, 32)])
    assert [text.get_text() for text in drawing.canvas.legends[0].get_texts()] == ["16", "32"]
    assert len([item for item in drawing.findings if item.place in ("width d = 16", "width d = 32")]) == 2
    with styled():
        assert not fit_and_draw(one, "t", [grid(16, 32)]).canvas.legends  # parameters sum up what differs
    with pytest.raises(
        UserError, match="model.d_model and training.steps differ at equal data.train_puzzles"
    ):
        fit_and_draw(spec, "t", [grid(16, 32, steps=(4, 8))])


def test_a_supported_law_is_drawn_and_a_doubtful_one_is_not(drawn: Drawn) -> None:
    good = drawn("two_decades", kind="law", x="train_flops", also=["data.train_puzzles"])
    assert any("1 usable point" in item.why for item in good.findings)
    assert good.strength is not None
    assert good.strength > 1
    assert any(line.get_linestyle() == ":" for line in good.canvas.axes[0].lines)
    few = drawn("compute", kind="law", x="train_flops", hue="model.d_model", envelope=True)
    assert few.strength == 1.5  # a fall without a form
    assert not any(line.get_linestyle() == ":" for line in few.canvas.axes[0].lines)


def test_the_envelope_is_that_of_all_blocks_of_the_grid(tables: dict[str, Table]) -> None:
    spec = figure(kind="law", x="train_flops", envelope=True).fits("blocks")[0]
    assert [hue for hue, _ in gather(tables["blocks"], spec)] == [None]
    apart = gather(tables["blocks"], spec.model_copy(update={"best": False}))
    assert len(apart) == 2
