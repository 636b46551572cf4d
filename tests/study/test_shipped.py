"""The studies as they are shipped."""

import csv
from contextlib import chdir

import pytest

from tests.shell import ROOT
from trm.pipeline.project import open_project
from trm.study.dataset_identity import shape
from trm.study.flops import train_flops

OLDER = list(csv.DictReader((ROOT / "docs/older_names.csv").read_text().splitlines()))
"""Names of experiments and points in older documents."""
STUDIES = {
    "laptop": {"study": "config/laptop.yaml"},
    "workstation": {"study": "config/workstation.yaml"},
    "rehearsal": {"study": "config/rehearsal.yaml"},
    "gpu": {"scale": "gpu"},
    "tpu": {"scale": "tpu"},
}
EQUAL_FLOPS = [
    ("tpu", "mlp_vs_attention", "MLP", "attention, FLOPs of the MLP"),
    ("tpu", "mlp_vs_attention", "maze, MLP", "maze, attention, FLOPs of the MLP"),
    ("laptop", "curriculum", "Nsup 1, 2, then 4", "fixed"),
    ("tpu", "curriculum", "(1,2) to (3,6) in the first fifth", "fixed, FLOPs of (1,2) to (3,6)"),
    ("tpu", "curriculum", "fixed", "T 2, 3, 4 in thirds"),
]


@pytest.fixture(scope="module")
def workflows():
    with chdir(ROOT):
        return {scale: open_project({"experiments": "*"} | config) for scale, config in STUDIES.items()}


def test_every_planned_experiment_is_in_the_papers_study_and_runs_somewhere(workflows):
    for name in {row["experiment"] for row in OLDER}:
        assert workflows["gpu"].study.experiment(name)
    skips = ("needs --config", "at scale gpu only")
    for workflow in workflows.values():
        for name, experiment in workflow.study.experiments.items():
            assert experiment.points or experiment.skip.startswith(skips), name


def test_every_older_name_of_a_point_means_one(workflows):
    points = {row["name"]: row for row in OLDER if row["point"]}
    assert len(points) == 41
    for scale, missing in (("gpu", ""), ("tpu", "exp07c")):  # a TPU has no float16 products
        for name, row in points.items():
            if name != missing:
                assert workflows[scale].study.experiment(row["experiment"]).point(row["point"]), name
    small = workflows["tpu"].study.experiment("model_size").point(points["exp01a"]["point"])
    assert small.runs[0].config.model.d_model == 256


@pytest.mark.parametrize("scale", STUDIES)
def test_every_experiment_asks_and_can_be_drawn_and_cut(workflows, scale):
    workflow = workflows[scale]
    workflow.check_figures()
    workflow.check_sizes()
    for name, experiment in workflow.study.experiments.items():
        assert experiment.definition.question.endswith("?"), name
        assert experiment.definition.hypothesis, name
        assert experiment.skip or workflow.catalogue.figures_of(name), name


@pytest.mark.parametrize(("scale", "experiment", "one", "other"), EQUAL_FLOPS)
def test_what_is_called_equal_compute_is(workflows, scale, experiment, one, other):
    found, costs = workflows[scale].study.experiment(experiment).points, []
    configs = {point.label: point.runs[0].config for point in found}
    for config in (configs[one], configs[other]):
        data = shape(config.data)
        costs.append(train_flops(config.model, config.training, data.seq_len, data.vocab_size))
    assert costs[1] == pytest.approx(costs[0], rel=3e-3)


def test_kept_tables_of_runs_that_no_grid_holds_say_so(workflows):
    for table in sorted(ROOT.glob("docs/results/*/table.csv")):
        rows = csv.DictReader(table.read_text().splitlines())
        held = bool({row["run"] for row in rows} & workflows["laptop"].runs.keys())
        note = table.with_name("note.md")
        marked = note.exists() and "No grid of the present study holds these runs." in note.read_text()
        assert marked != held, table.parent.name
