"""`pareto`: the frontier, with equal costs told equal; error on a log axis."""

from __future__ import annotations

from tests.analysis.conftest import Drawn
from trm.analysis.kinds.pareto import pareto_sentence


def test_the_frontier_in_words() -> None:
    kept = [("a", 1e12, 0.5)]
    assert pareto_sentence(kept, 3, "train_flops", "exact_accuracy") == (
        "Of 3 points, 1 is on the frontier of training compute: a (50.0 % at 1T FLOPs)."
    )
    assert "at 1 MiB" in pareto_sentence([("a", 2.0**20, 0.5)], 3, "peak_memory_bytes", "exact_accuracy")


def test_it_is_drawn_as_error_on_a_log_axis(drawn: Drawn) -> None:
    drawing = drawn("model_size", kind="pareto", costs=["wall_seconds"])
    assert len(drawing.canvas.axes) == 2
    assert drawing.canvas.axes[0].get_yscale() == "log"
    assert drawing.canvas.axes[0].get_ylabel().startswith("Error")
    drawn("blocks", kind="pareto")
