"""The Slurm profile on a real Slurm: requested resources, several workers and nodes, groups."""

import csv
import re
import signal
from collections.abc import Iterator

import pytest

from tests.slurm.conftest import Study, studies


@pytest.fixture(scope="module")
def documented(cluster, data, tmp_path_factory) -> Iterator[Study]:
    """A study of one run, after the documented command, which is a job itself."""
    making = studies(cluster, data, tmp_path_factory.mktemp("documented"))
    study = next(making)(steps=20)
    study.environment |= {"SBATCH_ACCOUNT": "lab", "SBATCH_PARTITION": "urgent"}
    asked = ("train:gres=gpu:h100:1", "train:gpu=0", "train:qos=normal", "evaluate:gpu_model=h100")
    asked += ("train:constraint=ib", "evaluate:constraint=ib")
    job = ("srun", "--ntasks=1", "--mem=4G", "--time=60", "--account=lab")
    study.run("--until", "evaluate", "--set-resources", *asked, before=job)
    yield study
    next(making, None)


def jobs_of(study: Study, rule: str) -> list[dict[str, str]]:
    """The properties of every job of a rule that this study submitted."""
    shown = [study.cluster.show(job) for job in study.jobs()]
    return [job for job in shown if job.get("Comment", "").startswith((f"rule_{rule}", f"group_{rule}"))]


def losses(study: Study) -> list[float]:
    """The only run's training losses."""
    (history,) = study.folder.glob("results/runs/*/history.csv")
    with history.open() as rows:
        return [float(row["train/loss"]) for row in csv.DictReader(rows)]


def test_the_documented_command_requests_what_the_run_needs(documented):
    (training,), (evaluation,) = jobs_of(documented, "train"), jobs_of(documented, "evaluate")
    assert training["Partition"] == evaluation["Partition"] == "urgent"
    assert training["TresPerNode"] == evaluation["TresPerJob"] == "gres:gpu:h100:1"
    assert training["Features"] == evaluation["Features"] == "ib"
    assert (training["Account"], training["QOS"]) == ("lab", "normal")
    assert training["TimeLimit"] == "00:15:00"
    assert training["NumNodes"] == "1"
    assert training["Requeue"] == "1"
    # For the program and a checkpoint of 51,000 parameters.
    assert 4000 <= int(training["MinMemoryNode"].rstrip("M")) < 4100
    assert [run["outcome"] for run in documented.trained()] == ["finished"]
    assert list(documented.folder.glob("results/runs/*/evaluation-*.json"))
    assert not re.search(r"(?i)guess|not recommended|unable", documented.output)


def test_a_run_that_goes_on_over_other_numbers_of_nodes_is_that_of_one(documented, new_study):
    study = new_study(steps=20, checkpoint_minutes=1e-6)
    study.slow_writes()
    for nodes in (2, 1):
        before = study.newest_steps()
        process = study.start("--until", "train", "--config", f"workers={nodes}", f"nodes={nodes}")
        study.wait(lambda before=before: study.newest_steps() > before, "a newer checkpoint")
        process.send_signal(signal.SIGINT)
        study.wait(lambda process=process: process.poll() == 1, "the end of the job")
        training = max(jobs_of(study, "train"), key=lambda job: int(job["JobId"]))
        assert training["NumNodes"] == str(nodes)
        assert training["TresPerJob"] == f"gres:gpu:{nodes}"
        job = training["JobId"]
        study.cluster.wait(lambda job=job: study.cluster.show(job)["JobState"] == "CANCELLED", "its end")
        assert not study.trained()
    del study.environment["PYTHONPATH"]  # writes fast again
    study.run("--until", "train", "--config", "workers=2", "nodes=2")
    assert [(run["workers"], run["resumes"]) for run in study.trained()] == [(2, 2)]
    assert losses(study) == pytest.approx(losses(documented), rel=1e-5)


def test_a_dead_worker_on_another_node_ends_the_run_with_a_sentence(new_study):
    study = new_study(steps=1_000_000)
    study.start("--until", "train", "--retries", "0", "--config", "workers=2", "nodes=2")
    study.wait(lambda: "step 20/" in study.log(), "training")
    study.cluster.kill_worker("n1")
    study.wait_for_failure()
    assert "worker 0 of 2 stops: another worker died" in study.log()


def test_a_group_trains_its_runs_one_after_another_on_the_gpus_of_one(new_study):
    study = new_study(steps=10, seeds=2)
    groups = ("--groups", "train=small", "evaluate=small", "--group-components", "small=2")
    study.run("--until", "evaluate", "--config", "workers=2", "max_runtime=50", *groups)
    (job,) = (study.cluster.show(job) for job in study.jobs())
    assert job["TresPerJob"] == "gres:gpu:2"
    assert job["TimeLimit"] == "00:50:00"  # `max_runtime`: its four jobs ask for 15 minutes each
    assert [run["workers"] for run in study.trained()] == [2, 2]
    assert len(list(study.folder.glob("results/runs/*/evaluation-*.json"))) == 2


def test_a_job_that_runs_out_of_memory_gets_more_once(new_study):
    study = new_study(steps=20)
    study.start("--until", "train", "--retries", "3", "--set-resources", "train:mem_mb=100")
    study.wait_for_failure()
    assert "ran out of its 100 MB of memory: its next attempt gets 200 MB" in study.output
    advice = "ran out of its 200 MB of memory: give it more (--set-resources train:mem_mb=400)"
    assert advice in study.output
    assert len(study.jobs()) == 2
