"""What the shipped study says of tasks that need files of their own, and of those that need none."""

from pathlib import Path

import pytest

from trm.pipeline.workflow import Workflow
from trm.study.dataset_identity import shape
from trm.study.grid import load_study

STUDY = "config/experiments.yaml"
ARC = sorted(str(path) for path in Path("tests/data/arc").glob("*.json"))


def test_arc_needs_no_files_on_a_laptop():
    arc = load_study(STUDY, "laptop").experiment("arc")
    data = arc.points[0].runs[0].config.data
    assert (data.source, data.files, data.test_puzzles) == ("generate", (), 5)
    assert shape(data).seq_len == data.arc_side**2 < 900
    assert len(arc.points[0].runs) == 3


@pytest.mark.parametrize("scale", ["gpu", "tpu"])
def test_arc_reads_the_official_files_elsewhere(scale):
    assert "arc_files" in load_study(STUDY, scale).experiment("arc").skip
    arc = load_study(STUDY, scale, variables={"arc_files": ",".join(ARC)}).experiment("arc")
    run = arc.points[0].runs[0].config
    assert run.data.files == tuple(ARC)
    assert (run.data.arc_side, run.data.augmentations) == (30, 1000)
    assert (run.model.mixer, run.model.position, run.model.puzzle_tokens) == ("attention", "rope", 16)


def test_the_files_reach_every_command_of_the_workflow():
    workflow = Workflow({"study": STUDY, "scale": "laptop", "arc_files": ",".join(ARC)})
    assert next(raw["kind"] for raw in workflow.study.experiment("real_arc").figures) == "votes"
    assert f"arc_files={','.join(ARC)}" in workflow.options
