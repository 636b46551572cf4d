"""`halting`: mean steps."""

import json

import pytest

from tests.analysis.conftest import figure
from tests.analysis.synthetic import experiment
from trm.analysis.drawing import styled
from trm.analysis.kinds import draw
from trm.analysis.specs import TableSpec
from trm.analysis.tables import Table, collect
from trm.study.schema import EvaluationConfig


def test_each_evaluation_of_a_run_has_its_own(tmp_path) -> None:
    """Points that differ in how their runs are evaluated share the runs, not the results."""
    kinds = {"ema": EvaluationConfig(), "raw": EvaluationConfig(weights="raw")}
    points = []
    for weights, settings in kinds.items():
        (point,) = experiment(tmp_path, "weights", [{}], evaluations=(settings,))["points"]
        points.append({**point, "coords": {"evaluation.weights": weights}})
    names = [run["evaluations"][0] for run in points[1]["runs"]]
    for run, name in zip(points[1]["runs"], names):
        path = tmp_path / "results/runs" / run["run"] / name
        document = json.loads(path.read_text())
        document["halting"] = {"steps": [1, 2], "share": [1.0, 0.0]}
        path.write_text(json.dumps(document))
    spec = {"name": "weights", "scale": "laptop", "study": "synthetic", "points": points}
    table = collect(TableSpec.model_validate(spec))
    with styled():
        drawing = draw(figure(kind="halting"), [table], [])
    ema, raw = (item.value for item in drawing.findings if item.metric == "mean_steps")
    assert raw == 1.0
    assert ema > 1.5


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([0.0, 0.0], "None does before the last step: every puzzle takes all steps."),
        ([0.0, 0.4], "None does before the last step: every puzzle takes all steps."),
        ([0.1, 0.4], "Puzzles that never halt count as the last step."),
    ],
)
def test_the_caption_says_whether_anything_halts(shares, words, tables) -> None:
    table = tables["model_size"]
    halting = {name: {"steps": [1, 2], "share": shares} for name in table.info["halting"]}
    with styled():
        drawing = draw(
            figure(kind="halting"), [Table(table.rows, table.curves, {**table.info, "halting": halting})], []
        )
    assert drawing.caption.endswith(f"at a step. {words}")
