"""The Slurm profile on a real Slurm: requested resources, arrays and groups."""

import csv

import pytest

from tests.slurm.conftest import Study

RUNS = "results/runs/{}/training.json"


def jobs_of(study: Study, rule: str) -> list[dict[str, str]]:
    """The properties of every job of a rule that this study submitted."""
    shown = (study.cluster.show(job) for job in study.cluster.jobs())
    mine = [job for job in shown if job["WorkDir"] == str(study.folder)]
    return [job for job in mine if job["Comment"].startswith((f"rule_{rule}", f"group_{rule}"))]


def test_the_documented_command_requests_what_the_run_needs(new_study):
    study = new_study(steps=20)
    study.environment |= {"SBATCH_PARTITION": "urgent"}
    study.run("--until", "evaluate")
    (training,), (evaluation,) = jobs_of(study, "train"), jobs_of(study, "evaluate")
    assert training["Partition"] == evaluation["Partition"] == "urgent"
    assert training["TresPerJob"] == evaluation["TresPerJob"] == "gres:gpu:1"
    assert training["TimeLimit"] == "00:15:00"
    assert training["NumNodes"] == "1"
    assert training["Requeue"] == "1"
    # For the program and a checkpoint of 51,000 parameters.
    assert 4000 <= int(training["MinMemoryNode"].rstrip("M")) < 4100
    assert [run["outcome"] for run in study.trained()] == ["finished"]
    assert list(study.folder.glob("results/runs/*/evaluation-*.json"))


def test_a_run_over_two_nodes_is_that_of_one(new_study):
    losses = []
    for nodes in (1, 2):
        study = new_study(steps=20)
        study.run("--until", "train", "--config", "workers=2", f"nodes={nodes}")
        (training,) = jobs_of(study, "train")
        assert training["NumNodes"] == str(nodes)
        assert training["TresPerJob"] == "gres:gpu:2"
        assert [run["workers"] for run in study.trained()] == [2]
        (history,) = study.folder.glob("results/runs/*/history.csv")
        with history.open() as rows:
            losses.append([float(row["train/loss"]) for row in csv.DictReader(rows)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_dead_worker_on_another_node_ends_the_run_with_a_sentence(new_study):
    study = new_study(steps=1_000_000)
    process = study.start("--until", "train", "--retries", "0", "--config", "workers=2", "nodes=2")
    study.wait(lambda: "step 20/" in study.log(), "training")
    study.cluster.kill_worker("n1")
    study.wait(lambda: process.poll() == 1, "the end of the study")
    assert "worker 0 of 2 stops: another worker died" in study.log()


def test_a_group_trains_its_runs_one_after_another_on_one_gpu(new_study):
    study = new_study(steps=10, seeds=3)
    groups = ("--groups", "train=small", "evaluate=small", "--group-components", "small=3")
    study.run("--until", "evaluate", "--config", "max_runtime=90", *groups)
    (job,) = (j for j in map(study.cluster.show, study.cluster.jobs()) if j["WorkDir"] == str(study.folder))
    assert job["TresPerJob"] == "gres:gpu:1"
    assert job["TimeLimit"] == "01:30:00"  # of three times 15 minutes of training and an hour of evaluation
    assert len(study.trained()) == 3
    assert len(list(study.folder.glob("results/runs/*/evaluation-*.json"))) == 3
