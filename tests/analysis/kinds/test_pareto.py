"""`pareto`: the frontier, equal costs count as equal; error on a log axis."""

from __future__ import annotations

from tests.analysis.conftest import Drawn
from trm.analysis.kinds import common
from trm.analysis.kinds.pareto import _names, pareto_sentence


def test_the_frontier_in_words() -> None:
    kept = [("a", 1e12, 0.5)]
    assert pareto_sentence(kept, 3, "train_flops", "exact_accuracy") == (
        "Of 3 points, 1 is on the frontier of training compute: a (50.0 % at 1T FLOPs)."
    )
    assert pareto_sentence(kept, 1, "train_flops", "exact_accuracy").startswith("Of 1 point, 1 is on")
    assert "at 1 MiB" in pareto_sentence([("a", 2.0**20, 0.5)], 3, "peak_memory_bytes", "exact_accuracy")


def test_it_is_drawn_as_error_on_a_log_axis(drawn: Drawn) -> None:
    drawing = drawn("model_size", kind="pareto", costs=["wall_seconds"])
    assert len(drawing.canvas.axes) == 2
    assert drawing.canvas.axes[0].get_yscale() == "log"
    assert drawing.canvas.axes[0].get_ylabel().startswith("Error")
    drawn("blocks", kind="pareto")


def test_a_point_beside_another_of_almost_its_error_keeps_its_name() -> None:
    """The best model, at the right edge: its name goes below the line, its neighbour's above."""
    (axes, *_) = common.panels(2, 2.7)[1]
    axes.set(xscale="log", yscale="log", xlim=(2.5e3, 2.5e5), ylim=(1.9, 120))
    _names(axes, [("d=128, lr=0.003", 4e4, 3.4), ("d=256, lr=0.002", 1.4e5, 3.0)])
    assert [text.get_text() for text in axes.texts] == ["d=128, lr=0.003", "d=256, lr=0.002"]
