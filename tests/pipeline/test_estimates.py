"""What Snakemake is told of a job whose placement is part of the question."""

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake.logging import logger

from trm.backends.cuda.gpus import visible_gpus
from trm.errors import UserError
from trm.launch.jobs import Jobs
from trm.pipeline import plan
from trm.pipeline.catalogue import source_name
from trm.pipeline.estimates import Estimates
from trm.pipeline.project import open_project


@pytest.fixture
def jobs(monkeypatch):
    """Runs of an experiment by the labels of their points."""
    monkeypatch.chdir(Path(__file__).parents[2])

    def find(experiment, **config):
        project = open_project({"experiments": experiment, **config})
        names = {point.label: point.runs[0].name for point in project.study.experiment(experiment).points}
        return Estimates(project), names

    return find


def test_workers_of_one_machine_have_a_core_each(jobs):
    estimates, names = jobs("port_validation", study="config/laptop.yaml")
    assert (estimates.launcher(names["CPU"]), "XLA on the CPU" in names) == ("", False)
    for label, cores in (("CPU", 1), ("CPU, 2 workers", 2)):
        assert estimates.workers(names[label]) == estimates.threads(names[label]) == cores
    given, _ = jobs("port_validation", study="config/laptop.yaml", set={"runtime.log_every": 5})
    run = SimpleNamespace(run=names["CPU"])
    options = [Jobs(found._project).train_options(run, None) for found in (estimates, given)]
    assert [json.loads(words[3])["log_every"] for words in options] == [2, 5]  # the scale says 100
    study = estimates._project.study  # isoflop has some of these runs, and says 2
    assert {study.runtime[run].evals for run in study.experiment("baseline").runs} == {12}
    study.runtime[names["CPU"]] = study.scale.runtime.model_copy(update={"checkpoint_minutes": 20})
    assert [estimates.stall(names[label]) for label in ("CPU", "CPU, 2 workers")] == [90, 31]


def test_another_backend_can_have_its_own_interpreter(jobs):
    estimates, names = jobs("port_validation", study="config/laptop.yaml", xla_python="/opt/xla/bin/python")
    assert estimates.launcher(names["XLA on the CPU"]) == "env PATH=/opt/xla/bin:$PATH"
    assert estimates.launcher(names["CPU"]) == ""


def test_workers_of_a_pod_are_its_hosts(jobs):
    estimates, names = jobs("port_validation", scale="tpu")
    assert estimates.launcher(names["XLA, 8 hosts"]) == "tpurun"
    assert [estimates.hosts(names[label]) for label in ("CPU", "XLA, one host", "XLA, 8 hosts")] == [1, 1, 8]
    pinned, _ = jobs("port_validation", scale="tpu", whole_pod="*")
    assert pinned.hosts(names["XLA, one host"]) == 1
    one, all_hosts = (estimates.of(names[label]) for label in ("XLA, one host", "XLA, 8 hosts"))
    assert all_hosts.seconds < one.seconds
    assert estimates.of(names["CPU"]).usd == 0.0  # planned as a CPU's hours


def test_a_budget_pays_a_shared_run_once_and_passes_over_what_is_too_dear():
    shared = {"shared": 6.0}  # counted at `dear` in the table, but `dear` is not bought
    prices = {"dear": shared | {"b": 6.0}, "cheap": shared | {"c": 1.0}, "again": {"c": 1.0}}
    found = plan.affordable(prices, 10.0)
    rows = [(row["bought"], row["device_hours"]) for row in found["rows"]]
    assert (rows, found["left"]) == ([(False, 12.0), (True, 7.0), (True, 0.0)], 3.0)


def test_commands_of_rules_see_the_same_study(jobs):
    project = open_project({"experiments": "ema", "xla_python": "/x y/python", "set": {"training.lr": 1e-3}})
    words = shlex.split(project.options)
    given = [words[i + 1] for i, word in enumerate(words) if word == "--config"]
    assert given == ["experiments=ema", "xla_python=/x y/python", "set=training.lr=0.001"]


def test_a_run_that_starts_from_weights_outside_the_study_needs_them_on_disk(
    jobs, tmp_path, monkeypatch, caplog
):
    project = open_project({"experiments": "ema", "set": {"training.init_from": "older-12345678"}})
    assert project.catalogue.any_initial_weights
    run = SimpleNamespace(run=project.study.experiment("ema").points[0].runs[0].name)
    inputs = Jobs(project)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logger, "propagate", True)
    with pytest.raises(SystemExit):
        inputs.initial_weights(run)
    assert re.match("training.init_from=older-12345678: .* does not exist", caplog.messages[-1])
    weights = tmp_path / "results/runs/older-12345678/weights.safetensors"
    weights.parent.mkdir(parents=True)
    weights.touch()
    assert inputs.initial_weights(run) == []


def test_gpus_of_a_job_follow_its_workers(jobs):
    """One GPU for each worker; a placement on processors asks for none, and what a batch cannot be shared by is cut."""
    estimates, names = jobs("port_validation", scale="gpu", gpus=1, workers=8)
    assert [estimates.gpus(names[label]) for label in ("CPU", "CUDA", "CUDA, 8 workers")] == [0, 1, 8]
    alone, names = jobs("data_size", scale="gpu", gpus=1)
    shared, _ = jobs("data_size", scale="gpu", gpus=1, workers=7)
    first = next(iter(names.values()))
    assert (alone.gpus(first), shared.gpus(first)) == (1, 6)  # of 768 rows
    assert shared.of(first).seconds < alone.of(first).seconds


def test_jobs_ask_for_host_memory_and_for_no_more_time_than_there_is(jobs):
    estimates, _ = jobs("model_size", scale="gpu", max_runtime=240)
    runs = list(estimates._project.runs)
    assert max(estimates.memory_mb("train", run) for run in runs) < 40_000
    assert max(estimates.minutes("train", run) for run in runs) == 240


def test_evaluations_and_data_have_the_time_that_they_need(jobs):
    """Or what `max_runtime` allows, after which an evaluation goes on; data cannot."""
    free, _ = jobs("inference_compute", scale="gpu")
    deepest = max(free._project.study.evaluations, key=lambda name: free.minutes("evaluate", name))
    dataset = next(iter(free._project.catalogue.datasets))
    assert free.minutes("dataset", dataset) < 240 < free.minutes("evaluate", deepest)
    limited, _ = jobs("inference_compute", scale="gpu", max_runtime=240)
    assert limited.minutes("evaluate", deepest) == 240
    many = {"data.source": "generate", "data.pool": 2_000_000, "data.train_puzzles": 1000}
    limited, _ = jobs("baseline", scale="gpu", max_runtime=10, set=many)
    runs = limited._project.study.experiment("baseline").points[0].runs
    (pool,) = {source_name(run.config.data) for run in runs}
    with pytest.raises(UserError, match=f"source {pool} takes about 17 min, but max_runtime is 10 minutes"):
        limited.minutes("source", pool)


def test_no_run_is_planned_with_more_memory_than_a_gpu_has(jobs):
    """The largest batch of the study would take 1.97 TB."""
    estimates, _ = jobs("batch_size", scale="gpu")
    planned = [estimates.of(run) for run in estimates._project.runs]
    assert max(run.memory_bytes for run in planned) < 2**30 * estimates.hardware.memory_gib
    assert max(run.micro_batches for run in planned) == 24


def test_visible_gpus(tmp_path, monkeypatch):
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus(tmp_path) == 2
    for named, count in {"0,3,5": 3, "2,-1,3": 1, "-1": 1, "MIG-a,MIG-b": 1, "GPU-a,GPU-b": 2}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        assert visible_gpus(tmp_path) == count
