"""`compute_frontier`: the frontiers of a whole study."""

from __future__ import annotations

from tests.analysis.conftest import Drawn, figure
from trm.analysis.kinds import draw
from trm.analysis.kinds.common import styled
from trm.analysis.kinds.compute_frontier import frontier_sentence
from trm.analysis.tables import Table


def test_the_two_ends_are_named() -> None:
    kept = [("a", 1e12, 0.5), ("b", 4e12, 0.75)]
    text = frontier_sentence(kept, "training compute")
    assert "rises from 50.0 % at 1T FLOPs (a) to 75.0 % at 4T FLOPs (b)" in text
    assert "No measured point beats 50.0 %" in frontier_sentence(kept[:1], "training compute")


def test_it_is_drawn(drawn: Drawn) -> None:
    drawing = drawn("", kind="compute_frontier", sources=["model_size", "inference"])
    assert drawing.numbers["training"][-1][2] > 0.8


def test_a_study_without_test_time_compute_has_the_other_frontier(tables: dict[str, Table]) -> None:
    table = tables["mixer"]
    bare = Table(table.rows.assign(flops_per_puzzle=float("nan")), table.curves, table.info)
    with styled():
        drawing = draw(figure(kind="compute_frontier", sources=["mixer"]), [bare], [])
    assert drawing.numbers["test"] == []
    assert "Nothing was measured against test-time compute a puzzle." in drawing.sentence
