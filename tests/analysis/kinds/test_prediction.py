"""`prediction`: a law held against a published number."""

from __future__ import annotations

import numpy as np

from tests.analysis.conftest import Drawn, figure
from trm.analysis.claims import sentences
from trm.analysis.fits.data import Data, envelope, gather
from trm.analysis.kinds.prediction import extrapolated
from trm.analysis.tables import Table

SPEC = {"kind": "prediction", "reported": [{"x": 1e15, "y": 0.05}], "best": True}


def test_inside_or_outside_the_interval() -> None:
    form = {"at": {"x": 1e15, "y": 0.04, "interval": [0.03, 0.06]}}
    group = {"chosen": "power_law", "forms": {"power_law": form}, "range": [[1e12, 1e13]], "doubts": []}
    group["means"] = {"x": [[1e12, 1e13]], "y": [0.4, 0.1]}
    spec = figure(**SPEC)
    text = sentences([extrapolated(group, spec)])
    assert (
        "Extrapolated 100 times beyond the data to 10¹⁵ FLOPs, the law predicts error 4.0 % [3.0, 6.0]"
        in text
    )
    assert "paper: 5.0 %, inside the interval" in text
    form["at"]["interval"] = [0.03, 0.045]
    assert "outside the interval" in sentences([extrapolated(group, spec)])
    flat = {**group, "chosen": "constant", "forms": {"constant": {**form, "parameters": {"E": 0.1}}}}
    text = sentences([extrapolated(flat, spec)])
    assert "so nothing is predicted 100 times beyond the data to 10¹⁵ FLOPs; paper: 5.0 %." in text
    assert "do not support the law: x" in sentences([extrapolated({**group, "doubts": ["x"]}, spec)])


def test_it_is_drawn(drawn: Drawn) -> None:
    drawing = drawn("compute", **SPEC)
    assert drawing.canvas.axes[0].get_xlim()[1] > 1e15


def test_only_the_envelope_is_fitted() -> None:
    x, y = np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([0.5, 0.6, 0.3, 0.2])
    data = envelope(Data(x, y, np.arange(4), list("abcd"), np.full(4, 100.0)))
    assert data.runs == ["a", "c", "d"]
    assert [(item["run"], item["why"]) for item in data.exclusions] == [
        ("b", "another point is better at no higher cost")
    ]


def test_the_envelope_is_that_of_all_blocks_of_the_grid(tables: dict[str, Table]) -> None:
    spec = figure(**SPEC).fits("blocks")[0]
    assert [hue for hue, _ in gather(tables["blocks"], spec)] == [None]
    apart = gather(tables["blocks"], spec.model_copy(update={"best": False}))
    assert len(apart) == 2
