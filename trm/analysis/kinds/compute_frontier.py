"""`compute_frontier`: error against training FLOPs and against test-time FLOPs of every run. A figure of the study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from trm.analysis.kinds.frontier import RUNNABLE
from trm.analysis.kinds.pareto import Point, means
from trm.analysis.labels import label
from trm.analysis.lazy import Axes, Table, common, pd
from trm.analysis.specs import Figure
from trm.analysis.words import compact, percent, sentence
from trm.errors import UserError


class Spec(Figure):
    """Every grid point of several experiments, with the two frontiers."""

    kind: Literal["compute_frontier"] = "compute_frontier"
    reading: ClassVar[str] = (
        "error by the FLOPs of training and of answering; the line joins what nothing cheaper beats"
    )
    sources: tuple[str, ...] = Field(min_length=1)
    """Experiments shown."""

    def experiments(self, experiment: str = "") -> tuple[str, ...]:
        return self.sources


def frontier_sentence(kept: Sequence[tuple[str, float, float]], what: str) -> str:
    """The two ends of a frontier."""
    if not kept:
        return f"Nothing was measured against {what}."
    (first, start, low), (name, cost, value) = kept[0], kept[-1]
    if len(kept) == 1:
        where = f"the lowest {what}: {compact(cost)} FLOPs ({name})"
        return f"No measured point beats {percent(value)}, reached at {where}."
    return (
        f"On the frontier of {what}, accuracy rises from {percent(low)} at {compact(start)} FLOPs ({first}) to "
        f"{percent(value)} at {compact(cost)} FLOPs ({name})."
    )


def draw(spec: Spec, tables: list[Table], fits: list[dict[str, Any]]) -> common.Drawing:
    """Left: grid points by training FLOPs. Right: evaluations by test-time FLOPs."""
    shown = [table for table in tables if table.experiment in spec.sources]
    if not shown:
        raise UserError("none of the experiments of compute_frontier has a table")
    figure, axes = common.canvas(common.TWO, 3.0, 1, 2, sharey=True)
    train: list[Point] = []
    test: list[Point] = []
    every, handles = [], []
    for index, table in enumerate(shown):
        rows = table.select(spec.where)
        every.append(rows)
        # seven colours against eight marks: every pair is new for 56 experiments
        style = {"color": common.OKABE_ITO[index % 7], "marker": common.MARKERS[index % 8]}
        train += _points(axes[0, 0], rows, "train_flops", style)
        for policy in RUNNABLE:
            part = table.select({**spec.where, "policy": policy})
            part = part[pd.to_numeric(part["flops_per_puzzle"], errors="coerce").notna()]
            test += _points(axes[0, 1], part, "flops_per_puzzle", style)
        handles.append(
            common.entry(axes[0, 0], table.experiment.replace("_", " "), linestyle="none", **style)
        )
    texts = ("training compute", "test-time compute a puzzle")
    kept = []
    for axis, points, column, text in zip(axes[0], (train, test), ("train_flops", "flops_per_puzzle"), texts):
        costs = [point.cost for point in points]
        best = common.frontier(axis, costs, [p.shown for p in points], [p.value for p in points])
        kept.append([points[i][:3] for i in best])
        common.axis_scale(axis, "x", label(column), costs, log=True)
        common.heading(axis, sentence(text))
    errors = [point.shown for point in train + test]
    common.error_scale(axes[0, 0], "error", min(errors), max(errors))
    common.legend(figure, handles, 4)
    sentences = [frontier_sentence(item, text) for item, text in zip(kept, texts)]
    return common.Drawing(
        figure,
        pd.concat(every),
        title="What compute buys",
        caption=(
            "Means over seeds, error on a log axis: every grid point of the study by its training compute (left), "
            "every evaluation by its test-time compute (right: fixed steps, stopping on the halt logit, restarts "
            f"picked by it). Black: frontier; costs within {100 * common.EQUAL_COSTS:.0f} % count as equal."
        ),
        sentence=" ".join(sentences),
        answer=sentences[0],
        numbers={"training": kept[0], "test": kept[1]},
    )


def _points(axes: Axes, rows: pd.DataFrame, column: str, style: dict[str, Any]) -> list[Point]:
    """Draw the means over seeds of each setting, and return them."""
    points = means(rows, ["point", "policy", "eval_steps", "restarts"], column, "exact_accuracy")
    for point in points:
        axes.plot(point.cost, point.shown, alpha=0.7, markersize=3.2, markeredgewidth=0, **style)
    return [
        point._replace(name=f"{point.rows['experiment'].iloc[0]}: {point.name}".replace("_", " "))
        for point in points
    ]
