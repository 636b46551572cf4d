"""The plan counts what will be done, never promises less than its longest chain, and learns from finished runs."""

import json
import re
import shutil
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from tests.pipeline.conftest import ROOT, STUDY
from trm.backends.cpu.speed import Speed
from trm.errors import UserError
from trm.pipeline import estimates, plan
from trm.pipeline.project import Project, open_project
from trm.provenance import processor
from trm.study.cost import read_hardware
from trm.study.text import device_text, seconds_text


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Opens the small study in an empty folder, changed by a function."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(estimates, "read_speeds", list)

    def opened(change=lambda document: None, **config) -> Project:
        document = deepcopy(STUDY)
        change(document)
        Path("config/experiments.yaml").write_text(yaml.safe_dump(document))
        return open_project(config)

    return opened


def finish(
    project: Project, run: str, seconds: float, processor_name: str | None = None, flops: float = 1e12
) -> None:
    for path in map(Path, project.catalogue.run_files(run)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    name = processor()[0] if processor_name is None else processor_name
    facts = {
        "device": "cpu",
        "device_name": name,
        "wall_seconds": seconds,
        "setup_seconds": 0.0,
        "devices": 1,
    }
    facts["train_flops"] = flops
    facts["config"] = project.runs[run].config.model_dump(mode="json")
    Path(project.catalogue.run_files(run)[0]).write_text(json.dumps(facts))


def test_wall_time_is_at_least_the_longest_chain(study):
    document = plan.document(study(), jobs=1000)
    assert document["wall_seconds"] == document["chain_seconds"]
    slowest = max(row["seconds"] for item in document["experiments"] for row in item["runs"])
    assert document["chain_seconds"] > slowest + 4 * 1.5  # data before it, drawing after it
    alone = plan.document(study(), jobs=1)
    assert alone["wall_seconds"] == alone["todo_seconds"] > document["wall_seconds"]


def test_data_and_evaluations_are_counted_until_they_exist(study):
    project = study()
    before = plan.document(project)
    assert before["todo_evaluations"] == 6
    assert before["preparation_seconds"] > 0
    training = sum(row["seconds"] for item in before["experiments"] for row in item["runs"])
    parts = before["preparation_seconds"] + before["drawing_seconds"]
    evaluations = sum(item["evaluation_seconds"] for item in before["experiments"])
    assert evaluations > 0
    assert before["todo_seconds"] == pytest.approx(training + evaluations + parts)
    for run in project.runs:
        finish(project, run, 5.0)
    trained = plan.document(study())
    assert (trained["todo_runs"], trained["todo_evaluations"], trained["preparation_seconds"]) == (0, 6, 0)
    for name in project.study.evaluations:
        Path("results/runs", name).touch()
    assert plan.document(study())["todo_evaluations"] == 0


def test_evaluations_cost_more_the_more_they_measure(study):
    def restarts(document):
        document["base"]["evaluation"]["restarts"] = [2000]

    plain, noisy = (
        sum(item["evaluation_seconds"] for item in plan.document(study(change))["experiments"])
        for change in (lambda document: None, restarts)
    )
    assert noisy > 1.5 * plain


def test_the_plan_uses_the_speed_of_finished_runs_of_this_machine(study):
    project = study()
    before = plan.document(project)
    assert "from config/hardware.yaml (laptop) until a run here is finished" in plan.text(before)
    runs = list(project.runs)
    finish(project, runs[0], 10.0, flops=5e11)
    finish(project, runs[1], 1e4, "another processor")
    Path(project.catalogue.run_files(runs[2])[0]).parent.mkdir(parents=True)
    after = plan.document(study())
    (row,) = (row for item in after["experiments"] for row in item["runs"] if row["run"] == runs[5])
    hardware = read_hardware("config/hardware.yaml", "laptop")
    assert row["seconds"] == pytest.approx(hardware.fixed + row["flops"] / 5e10)
    assert "Speed: 50 GFLOP/s a CPU core, as 1 finished run of this machine had" in plan.text(after)


def test_the_first_plan_uses_the_speed_that_set_up_measured(study, monkeypatch):
    """At the nearest width, and attention at its own speed; a finished run of that width counts as much."""
    measured = [Speed("mlp", 8, 1e10, 1.0), Speed("mlp", 64, 5e10, 1.0), Speed("attention", 64, 1e9, 1.0)]
    monkeypatch.setattr(estimates, "read_speeds", lambda: measured)

    def mixers(document):
        points = [{"label": mixer, "model.mixer": mixer} for mixer in ("mlp", "attention")]
        points[1]["model.position"] = "rope"
        document["experiments"]["mixers"] = {"question": "Which?", "grid": {"points": points}, "figures": []}

    project = study(mixers)
    seen = estimates.Estimates(project)
    fixed = read_hardware("config/hardware.yaml", "laptop").fixed
    for name, run in project.runs.items():
        rate = (
            1e9 if run.config.model.mixer == "attention" else 5e10 if run.config.model.d_model > 22 else 1e10
        )
        assert seen.of(name).seconds == pytest.approx(fixed + seen.of(name).flops / rate)
    text = plan.text(plan.document(project))
    assert "1 GFLOP/s to 50 GFLOP/s a CPU core by mixer and width, as set-up measured on this machine" in text
    assert estimates.Estimates(project, measured=False).speeds == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (3.14, "3.1 s"), (42.4, "42 s"), (135, "2.2 min"), (7199, "120 min"), (8000, "2.2 h")],
)
def test_times_have_two_digits(seconds, text):
    assert seconds_text(seconds) == text


def test_few_device_hours_are_minutes():
    assert [device_text(hours) for hours in (0.0092, 0.1, 3.14, 12_345)] == [
        "33 s",
        "6 min",
        "3.1 h",
        "12,000 h",
    ]


def test_plurals(study):
    def one_seed(document):
        document["scales"]["laptop"] |= {"seeds": [0]}
        document["experiments"] = {"batch": {"question": "One?", "figures": [{"kind": "curves"}]}}
        document["figures"] = []

    assert "config/experiments.yaml (study small at scale laptop): 1 run to train" in plan.text(
        plan.document(study(one_seed))
    )


def test_prices_follow_the_profile(study):
    def pod(document):
        document["scales"]["laptop"]["hardware"] = "v4-64"
        document["base"]["training"]["steps"] = 100_000

    documents = {
        pricing: plan.document(study(pod, pricing=pricing)) for pricing in ("on-demand", "spot", "grant")
    }
    usd = {pricing: document["todo_usd"] for pricing, document in documents.items()}
    assert usd["on-demand"] > usd["spot"] > usd["grant"] == 0
    assert "of the pod; on-demand prices\n" in plan.text(documents["on-demand"])
    assert "of the pod; spot prices\n" in plan.text(documents["spot"])
    assert "of the pod; free under the grant\n" in plan.text(documents["grant"])
    chips, pod_hours = documents["grant"]["todo_device_hours"], documents["grant"]["pod_hours"]
    assert chips <= pod_hours * 32

    hardware = Path("config/hardware.yaml")
    hardware.write_text(re.sub(r"^ *usd_spot:.*\n", "", hardware.read_text(), flags=re.MULTILINE))
    unknown = plan.document(study(pod, pricing="spot"))
    assert unknown["todo_usd"] == usd["on-demand"]
    assert "on-demand prices: the spot price is lower, but unknown" in plan.text(unknown)


def test_a_grant_is_spent_by_the_phases_of_the_study(study):
    def phased(document):
        document["phases"] = ["laws", "ablations"]
        document["experiments"]["data_size"]["phase"] = "laws"
        document["experiments"]["batch"]["phase"] = "ablations"

    found = plan.document(study(phased, grant_days=1e-3))
    assert [row["experiment"] for row in found["budget"]["rows"]] == ["data_size", "batch"]
    hours = device_text(1e-3 * 24 * found["jobs"])
    head = f"What {hours} of CPU core time buys, by phase (laws, ablations); a shared run is paid once"
    assert head in plan.text(found)
    plain = plan.document(study(grant_days=1e-3))
    assert [row["experiment"] for row in plain["budget"]["rows"]] == ["batch", "data_size"]
    assert ", in the study's order; a shared" in plan.text(plain)

    def wrong(document):
        phased(document)
        document["experiments"]["batch"]["phase"] = "laws2"

    with pytest.raises(
        UserError, match="experiment batch: phase 'laws2' is not one of `phases`: laws, ablations"
    ):
        study(wrong)


def test_what_was_spent_stands_beside_the_plan(study):
    def pod(document):
        document["scales"]["laptop"]["hardware"] = "v4-64"

    project = study(pod)
    assert "spent" not in plan.document(project)
    first, second, damaged, *_ = project.runs
    finish(project, first, 1800.0)
    finish(project, second, 900.0, "another processor")
    finish(project, damaged, 1.0)
    Path(project.catalogue.run_files(damaged)[0]).write_text("{")
    found = plan.document(study(pod))["spent"]
    assert (found["jobs"], found["device_hours"]) == (2, 0.75)
    Path(".snakemake/tpu").mkdir(parents=True)
    Path(".snakemake/tpu/jobs.csv").write_text("job,chip_seconds\na,36000\nb,18000\nc,\n")
    said = "Spent so far: 15 h of TPU v4 chip time, $48.30 by 2 jobs"
    assert said in plan.text(plan.document(study(pod))).splitlines()
    assert "Spent so far: 15 h of TPU v4 chip time by 2 jobs" in plan.text(
        plan.document(study(pod, pricing="grant"))
    )


def test_finished_runs_in_a_bucket_are_known(study):
    """Every look at what exists goes through Place: nothing on this disk, everything in the bucket."""
    project = study(storage_prefix="gs://bucket/study")
    there = {path for run in project.runs for path in project.catalogue.run_files(run)}
    there |= {f"results/runs/{name}" for name in project.study.evaluations}
    project.place._listed["results/runs"] = there
    project.place._listed["results/datasets"] = project.place._listed["results/sources"] = set()
    document = plan.document(project)
    assert (document["todo_runs"], document["todo_evaluations"], document["preparation_seconds"]) == (0, 0, 0)
    assert project.selection.is_done("batch")
    assert not Path("results/runs").exists()
