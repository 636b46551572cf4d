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
    study = next(making)(steps=100)
    study.environment |= {"SBATCH_ACCOUNT": "lab", "SBATCH_PARTITION": "urgent"}
    asked = ("train:gres=gpu:h100:1", "train:gpu=0", "train:qos=normal", "evaluate:gpu_model=h100")
    asked += ("train:constraint=ib", "evaluate:constraint=ib")
    study.ask_as_ordinary_user()
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


def test_a_run_goes_on_after_a_workers_death_and_over_other_numbers_of_nodes_as_on_one(documented, new_study):
    study = new_study(steps=100, checkpoint_minutes=1e-6)
    study.slow_writes()

    def wait_for_checkpoint():
        before = study.newest_steps()
        study.wait(lambda: study.newest_steps() > before, "a newer checkpoint")

    for nodes in (2, 1):
        words = ("--retries", "1", "--config", f"workers={nodes}", f"nodes={nodes}")
        process = study.start("--until", "train", *words)
        wait_for_checkpoint()
        if nodes == 2:
            study.cluster.kill_worker("n1")
            study.wait(lambda: len(study.jobs()) == 2, "the retry")
            assert "worker 0 of 2 stops: another worker died" in study.log()
            first, second = (int(job["MinMemoryNode"].rstrip("M")) for job in jobs_of(study, "train"))
            assert second == 2 * first
            wait_for_checkpoint()
        (study.folder / "hold").touch()  # the steps that are left, however long the controller takes
        process.send_signal(signal.SIGINT)
        study.wait(lambda process=process: process.poll() == 1, "the end of the controller")
        (study.folder / "hold").unlink()
        training = max(jobs_of(study, "train"), key=lambda job: int(job["JobId"]))
        assert training["NumNodes"] == str(nodes)
        assert training["TresPerJob"] == f"gres:gpu:{nodes}"
        assert training.get("TresPerNode") == {2: "gres:gpu:1"}.get(nodes)  # equal shares
        job = training["JobId"]
        study.cluster.wait(lambda job=job: study.cluster.show(job)["JobState"] == "CANCELLED", "its end")
        assert not study.trained()
    del study.environment["PYTHONPATH"]  # writes fast again
    study.run("--until", "train", "--config", "workers=2", "nodes=2")
    assert [(run["workers"], run["resumes"]) for run in study.trained()] == [(2, 3)]
    assert losses(study) == pytest.approx(losses(documented), rel=1e-5)


def test_a_group_trains_its_runs_one_after_another_on_the_gpus_of_one(new_study):
    study = new_study(steps=10, seeds=2)
    groups = ("--groups", "train=small", "evaluate=small", "--group-components", "small=2")
    study.run("--until", "evaluate", "--config", "workers=2", "max_runtime=50", *groups)
    jobs = [study.cluster.show(job) for job in study.jobs()]
    assert len(jobs) == 1, study.output
    (job,) = jobs
    assert job["TresPerJob"] == "gres:gpu:2"
    assert job["TimeLimit"] == "00:50:00"  # `max_runtime`: its four jobs ask for 15 minutes each
    assert [run["workers"] for run in study.trained()] == [2, 2]
    assert len(list(study.folder.glob("results/runs/*/evaluation-*.json"))) == 2
