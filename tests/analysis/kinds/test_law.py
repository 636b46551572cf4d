"""`law`: words follow the fit; a law is drawn only where the points support it."""

from typing import Any

import numpy as np
import pytest

from tests.analysis.conftest import Drawn, figure
from trm.analysis.findings import strength
from trm.analysis.fits.data import Data, envelope, gather
from trm.analysis.laws import equation, law_findings, supported
from trm.analysis.tables import Table


def law(slope: float, bounds: list[float], chosen: str = "power_law", **more: Any) -> dict[str, Any]:
    """A group of fit.json."""
    parameters = {"E": 0.05, "A": 2.0, "a": slope}
    intervals = {"E": more.pop("floor", [0.04, 0.06]), "A": [1.0, 3.0], "a": bounds}
    form = {"parameters": parameters, "intervals": intervals, "held_out": None, **more}
    means = {"x": [[100.0, 1000.0]], "y": [0.4, 0.1]}
    group = {"chosen": chosen, "forms": {chosen: form}, "range": [[100.0, 1000.0]], "points": 6}
    return {**group, "means": means, "interval": 0.95, "doubts": []}


def told(group: dict[str, Any], x: str, y: str = "error") -> str:
    return " ".join(item.text for item in law_findings(group, x, y))


@pytest.mark.parametrize(
    ("slope", "way", "exponent"), [(0.5, "falls", "−0.50 [−0.60, "), (-0.5, "rises", "0.50 [0.40, ")]
)
def test_a_law_falls_or_rises(slope: float, way: str, exponent: str) -> None:
    text = told(law(slope, [slope - 0.1, slope + 0.1]), "data.train_puzzles")
    assert text.startswith(f"Error {way} as unique training puzzles to the power {exponent}")


def test_a_law_in_doubt_is_not_claimed() -> None:
    group = {**law(0.5, [0.4, 0.6]), "doubts": ["a constant predicts the held-out largest point better"]}
    (found,) = law_findings(group, "data.train_puzzles")
    assert found.text.startswith(
        "Error falls from 40.0 % to 10.0 % between 100 and 1,000 unique training puzzles; "
    )
    assert found.text.endswith("no power law is established.")
    assert found.why.startswith("a constant predicts")
    assert not supported(group)
    assert strength([found]) is None


def test_floors_are_found_only_where_their_interval_stays_clear_of_zero() -> None:
    shown = told(law(0.5, [0.4, 0.6], "power_law_floor"), "data.train_puzzles")
    assert "Error with unlimited unique training puzzles is 5.0 % [4.0, 6.0]." in shown
    unsure = told(law(0.5, [0.4, 0.6], "power_law_floor", floor=[1e-9, 0.06]), "data.train_puzzles")
    assert "unlimited" not in unsure


def test_constants_targets_and_held_out_points_are_findings() -> None:
    assert "No trend of error is established" in told(law(0, [0, 0], "constant"), "parameters")
    assert "; too few" in told({"error": "too few"}, "parameters")
    reached = law(0.5, [0.4, 0.6], target={"accuracy": 0.85, "x": 2500.0, "interval": [2000.0, 3000.0]})
    assert "85 % accuracy needs 2,500 [2,000, 3,000] puzzles." in told(reached, "data.train_puzzles")
    never = law(0.5, [0.4, 0.6], target={"accuracy": 0.85, "x": None, "interval": [None, None]})
    assert "is never reached" in told(never, "data.train_puzzles")
    out = {"predicted": 0.12, "interval": [0.1, 0.15], "observed": 0.11, "log_error": 0.1}
    held = told(law(0.5, [0.4, 0.6], held_out=out), "data.train_puzzles")
    assert "All points but the largest predict 12.0 % [10.0, 15.0]; 11.0 % was measured, inside." in held


def test_the_equation_is_stated_at_a_round_place() -> None:
    group = law(0.5, [0.4, 0.6], reference={"x": 200.0, "A": 0.141, "interval": [0.12, 0.16]})
    text = equation(group, "data.train_puzzles")
    assert "(D / 200)" in text
    assert "A = 14.1 % [12.0, 16.0]" in text


def test_a_supported_law_is_drawn_and_a_doubtful_one_is_not(drawn: Drawn) -> None:
    good = drawn("two_decades", kind="law", x="train_flops", also=["data.train_puzzles"])
    assert any("1 usable point" in item.why for item in good.findings)
    assert good.strength is not None
    assert good.strength > 1
    assert any(line.get_linestyle() == ":" for line in good.canvas.axes[0].lines)
    few = drawn("compute", kind="law", x="train_flops", hue="model.d_model", envelope=True)
    assert few.strength == 1.5  # a fall without a form
    assert not any(line.get_linestyle() == ":" for line in few.canvas.axes[0].lines)


def test_only_the_envelope_is_fitted() -> None:
    x, y = np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([0.5, 0.6, 0.3, 0.2])
    data = envelope(Data(x, y, np.arange(4), list("abcd"), np.full(4, 100.0)))
    assert data.runs == ["a", "c", "d"]
    assert [(item["run"], item["why"]) for item in data.exclusions] == [
        ("b", "another point is better at no higher cost")
    ]


def test_the_envelope_is_that_of_all_blocks_of_the_grid(tables: dict[str, Table]) -> None:
    spec = figure(kind="law", x="train_flops", envelope=True).fits("blocks")[0]
    assert [hue for hue, _ in gather(tables["blocks"], spec)] == [None]
    apart = gather(tables["blocks"], spec.model_copy(update={"best": False}))
    assert len(apart) == 2
