"""The plan counts what will be done, never promises less than its longest chain, and learns from finished runs."""

import json
import re
import shutil
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tests.pipeline.conftest import STUDY, one_run, planned
from tests.shell import ROOT
from trm.backends.cpu.speed import Speed
from trm.errors import UserError
from trm.pipeline import estimates, plan
from trm.pipeline.estimates import Job
from trm.pipeline.project import Project, open_project
from trm.provenance import processor
from trm.storage import open_store
from trm.study.cost import read_hardware
from trm.study.text import device_text, seconds_text
from trm.tasks.arc.generate import task
from trm.tasks.arc.spec import FAMILIES


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


def finish(project: Project, run: str, seconds: float, name: str | None = None, flops: float = 1e12) -> None:
    """The files of a run that took some time on this processor, or on another."""
    for path in project.catalogue.run_files(run):
        touch(path)
    facts = {"device": "cpu", "device_name": name or processor()[0], "wall_seconds": seconds, "devices": 1}
    facts |= {"setup_seconds": 0.0, "train_flops": flops}
    facts["config"] = project.runs[run].config.model_dump(mode="json")
    Path(project.catalogue.run_files(run)[0]).write_text(json.dumps(facts))


def touch(path: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).touch()


def pod(document):
    """A study for a slice of TPUs, changed in place."""
    document["scales"]["laptop"]["hardware"] = "v4-64"
    document["base"]["training"]["steps"] = 100_000


def test_the_plan_sums_its_jobs_and_takes_at_least_their_longest_chain(study):
    project = study()
    jobs = [Job("dataset", name) for name in project.catalogue.datasets]
    jobs += {job for name in project.selection.experiments for job in plan.measuring(project, name)}
    jobs += [Job("table", "batch"), Job("plot", "batch"), Job("html_report")]
    document, alone = (
        plan.document(project, jobs, at_once, project.selection.experiments) for at_once in (1000, 1)
    )
    known, total = estimates.Estimates(project), document["total"]
    assert total["jobs"] == len(jobs) == sum(row["jobs"] for row in document["rows"])
    for key, values in zip(("seconds", "device_hours", "usd", "flops"), zip(*map(known.cost, jobs))):
        assert total[key] == pytest.approx(sum(values)) == sum(row[key] for row in document["rows"])
    assert total["training_seconds"] == pytest.approx(sum(run["seconds"] for run in document["runs"]))
    assert document["wall_seconds"] == document["chain_seconds"]
    slowest = max(run["seconds"] for run in document["runs"])
    # data before it, drawing after it
    assert document["chain_seconds"] - slowest > 4 * known.hardware.start
    assert alone["wall_seconds"] == pytest.approx(alone["total"]["seconds"], rel=1e-12)
    assert alone["wall_seconds"] > document["wall_seconds"]


def test_the_plan_uses_the_speed_of_finished_runs_of_this_machine(study):
    project = study()
    before = planned(project)
    assert "from config/hardware.yaml (laptop) until a run here is finished" in plan.text(before)
    runs = list(project.runs)
    finish(project, runs[0], 10.0, flops=5e11)
    finish(project, runs[1], 1e4, "another processor")
    Path(project.catalogue.run_files(runs[2])[0]).parent.mkdir(parents=True)
    after = planned(study())
    (row,) = (row for row in after["runs"] if row["run"] == runs[5])
    hardware = read_hardware("config/hardware.yaml", "laptop")
    assert row["seconds"] == pytest.approx(hardware.fixed + row["flops"] / 5e10)
    assert "Speed: 50 GFLOP/s a CPU core, as 1 finished run of this machine had" in plan.text(after)


@pytest.mark.parametrize("bucket", [False, True])
def test_a_run_with_a_checkpoint_costs_what_is_left_of_it(study, bucket, tmp_path, monkeypatch):
    """A checkpoint without a manifest was not complete when the process was killed."""
    config = {"storage_prefix": "gs://team/study"} if bucket else {}
    root = tmp_path / "bucket" if bucket else Path()
    (root / "results").mkdir(parents=True)
    monkeypatch.setattr("trm.storage.open_store", lambda uri, *_: open_store(root))
    project = study(**config)
    job, *others = (Job("train", run) for run in project.runs)
    steps = project.runs[job.name].config.training.steps
    whole = planned(project)
    for step, name in ((steps // 4, "manifest.json"), (steps // 2, "manifest.json"), (steps, "meta.json")):
        touch(str(root / f"results/checkpoints/{job.name}/step-{step:08d}/{name}"))
    estimate, after = estimates.Estimates(project := study(**config)), planned(project)
    fixed, cost, left = estimate._hardware_of(job.name).fixed, estimate.cost(job), estimate.left(job)
    assert left.seconds == pytest.approx(fixed + (cost.seconds - fixed) / 2)
    assert left.flops == pytest.approx(cost.flops / 2)
    assert [estimate.left(other) for other in others] == [estimate.cost(other) for other in others]
    saved = whole["total"]["training_seconds"] - after["total"]["training_seconds"]
    assert saved == pytest.approx(cost.seconds - left.seconds)
    assert "1 run of these will go on from a checkpoint" in plan.text(after)
    assert "checkpoint:" not in plan.text(whole)


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
        rate = {"attention": 1e9}.get(run.config.model.mixer, 5e10 if run.config.model.d_model > 22 else 1e10)
        assert seen.of(name).seconds == pytest.approx(fixed + seen.of(name).flops / rate)
    one = Job("evaluate", next(iter(project.study.evaluations)))  # it starts as fast as a training
    assert seen.cost(one).seconds == pytest.approx(fixed + seen._evaluation_seconds(one.name))
    text = plan.text(planned(project))
    assert "1 GFLOP/s to 50 GFLOP/s a CPU core by mixer and width, as set-up measured on this machine" in text
    # in the report, and in the documentation
    assert [estimates.Estimates(project, False, on).speeds for on in (True, False)] == [measured, []]


@pytest.mark.parametrize(
    ("text", "amount", "expected"),
    [
        *((seconds_text, *case) for case in [(0, "0 s"), (3.14, "3.1 s"), (42.4, "42 s"), (135, "2.2 min")]),
        *((seconds_text, *case) for case in [(7199, "120 min"), (8000, "2.2 h")]),
        *((device_text, *case) for case in [(0.0092, "33 s"), (0.1, "6 min"), (3.14, "3.1 h"), (12_345, "12,000 h")]),
    ],
)  # fmt: skip
def test_times_have_two_digits_in_the_unit_that_fits(text, amount, expected):
    assert text(amount) == expected


@pytest.mark.parametrize(("folders", "said"), [(("some", "more"), 1), (("Training", "Evaluation"), 0)])
def test_a_random_split_of_tasks_is_said(study, folders, said):
    files = [f"data/{folder}/{number}.json" for number, folder in enumerate(folders)]
    for number, file in enumerate(map(Path, files)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(task(0, number, 6, FAMILIES, 3)[1]))
    arc = {"task": "arc", "source": "json", "arc_side": 6, "files": files, "train_puzzles": None}
    arc |= {"validation_puzzles": 0, "test_puzzles": 1, "augmentations": 1}
    project = study(lambda document: document.update(one_run(4), base=document["base"] | {"data": arc}))
    line = (
        f"Tasks of {files[0]} and the files with it are split at random: no name says training or evaluation"
    )
    assert plan.text(planned(project)).splitlines().count(line) == said


def test_prices_follow_the_profile(study):
    said = {"on-demand": "on-demand prices", "spot": "spot prices", "grant": "free under the grant"}
    documents = {pricing: planned(study(pod, pricing=pricing)) for pricing in said}
    usd = {pricing: document["total"]["usd"] for pricing, document in documents.items()}
    assert usd["on-demand"] > usd["spot"] > usd["grant"] == 0
    for pricing, words in said.items():
        assert f"; {words}\n" in plan.text(documents[pricing])
    assert documents["grant"]["total"]["device_hours"] <= documents["grant"]["pod_hours"] * 32

    hardware = Path("config/hardware.yaml")
    hardware.write_text(re.sub(r"^ *usd_spot:.*\n", "", hardware.read_text(), flags=re.MULTILINE))
    unknown = planned(study(pod, pricing="spot"))
    assert unknown["total"]["usd"] == usd["on-demand"]
    assert "on-demand prices: the spot price is lower, but unknown" in plan.text(unknown)


def test_a_grant_is_spent_by_the_phases_of_the_study(study):
    def phased(document, second="ablations"):
        document["phases"] = ["laws", "ablations"]
        document["experiments"]["data_size"]["phase"] = "laws"
        document["experiments"]["batch"]["phase"] = second

    found = planned(study(phased, grant_days=1e-3))
    assert [row["experiment"] for row in found["budget"]["rows"]] == ["data_size", "batch"]
    hours = device_text(1e-3 * 24 * found["at_once"])
    head = f"What {hours} of CPU core time buys, by phase (laws, ablations); a shared run is paid once"
    assert head in plan.text(found)
    plain = planned(study(grant_days=1e-3))
    assert [row["experiment"] for row in plain["budget"]["rows"]] == ["batch", "data_size"]
    assert ", in the study's order; a shared" in plan.text(plain)
    sentence = "experiment batch: phase 'laws2' is not one of `phases`: laws, ablations"
    with pytest.raises(UserError, match=sentence):
        study(lambda document: phased(document, "laws2"))


def test_a_budget_pays_for_the_jobs_of_the_graph_alone(study):
    project = study(budget_hours=1)
    jobs = list(plan.measuring(project, "batch"))
    found = plan.document(project, jobs[:1], 2, project.selection.experiments)
    (batch, data_size) = found["budget"]["rows"]
    assert 0 < batch["device_hours"] == pytest.approx(found["total"]["device_hours"])
    assert data_size["device_hours"] == 0


def test_what_was_spent_stands_beside_the_plan(study):
    project = study()
    assert "spent" not in planned(project)
    first, second, damaged, *_ = project.runs
    finish(project, first, 1800.0)
    finish(project, second, 900.0, "another processor")
    finish(project, damaged, 1.0)
    Path(project.catalogue.run_files(damaged)[0]).write_text("{")
    found = planned(study())["spent"]
    assert (found["jobs"], found["device_hours"]) == (2, 0.75)
    Path(".snakemake/tpu").mkdir(parents=True)
    # two jobs at once, another one within the half hour for which an idle pod stays, one a day later, one without times
    rows = "a,1000,4600\nb,2000,3000\nc,5500,8200\nd,90000,91800\ne,,\nf,0.000,50.000\n"
    Path(".snakemake/tpu/jobs.csv").write_text(f"job,started,ended\n{rows}")
    hours = (8200 - 1000 + 1800 + 1800 + 1800) / 3600 * 32  # of all chips, busy or not
    for pricing, usd in (("on-demand", f", ${3.22 * hours:,.2f}"), ("grant", "")):
        text = plan.text(planned(study(pod, pricing=pricing)))
        said = f"Spent so far: at least {device_text(hours)} of TPU v4 chip time{usd} by 4 jobs"
        assert said in text.splitlines()
    # an hour on a v4-8 of an earlier day, one of a slice that nobody knows
    rows = "a,1000,2800,v4-8\nb,1000,2800,v4-64\nc,1000,2800,v99-8\n"
    Path(".snakemake/tpu/jobs.csv").write_text(f"job,started,ended,accelerator_type\n{rows}")
    spent = planned(study(pod))["spent"]
    assert (spent["jobs"], spent["device_hours"]) == (2, 4 + 32)


def test_finished_runs_in_a_bucket_are_known(study):
    """Every look at what exists goes through Files: nothing on this disk, everything in the bucket."""
    project = study(storage_prefix="gs://bucket/study")
    there = {path for run in project.runs for path in project.catalogue.run_files(run)}
    there |= {f"results/runs/{name}" for name in project.study.evaluations}
    project.files._listed["results/runs/"] = there
    project.files._listed["results/datasets/"] = project.files._listed["results/sources/"] = set()
    assert project.done == set(project.runs)
    assert project.selection.is_done("batch")
    assert not Path("results/runs").exists()


@pytest.mark.parametrize(
    ("resources", "local", "settings", "jobs"),
    [
        ({"_cores": 8, "_nodes": None}, True, {}, 8),
        ({"_cores": 1, "_nodes": None}, True, {}, 1),
        ({"_cores": 1, "_nodes": 32}, True, {}, 32),  # a dry run of profiles/slurm
        ({"_cores": 2, "_nodes": 32}, False, {}, 32),
        ({"_cores": 64, "_nodes": None, "gpu": 8}, True, {"gpus": 1}, 8),
        ({"_cores": 1, "_nodes": 20, "tpu_hosts": 8}, True, {}, 8),
        ({"_cores": 4, "_nodes": None, "gpu": 0}, True, {"gpus": 1}, 1),
        ({"_cores": 2, "_nodes": None}, True, {"study": "config/pod.yaml"}, 8),  # no profile, a scale for a pod
    ],
)  # fmt: skip
def test_parallelism_is_that_of_the_profile_and_the_command_line(study, resources, local, settings, jobs):
    given = {name: SimpleNamespace(value=value) for name, value in resources.items()}
    snakemake = SimpleNamespace(global_resources=given, local_exec=local)
    document = deepcopy(STUDY)
    pod(document)
    Path("config/pod.yaml").write_text(yaml.safe_dump(document))
    assert plan.at_once(snakemake, study(**settings)) == jobs
