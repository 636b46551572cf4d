"""Slurm jobs that end before their run is finished keep the step and use no retry."""

import re

import pytest

from tests.slurm.conftest import Study

LONG = 1_000_000


def stopped_step(study: Study) -> int:
    """The step at which training stopped last, from the log."""
    found = re.findall(r"^stopped at step (\d+)", study.log(), re.MULTILINE)
    return int(found[-1]) if found else 0


def training_job(study: Study) -> str:
    """The training job, once training has made a step."""
    study.wait(lambda: re.search(r"^ +\d+ %|step \d+/", study.log(), re.MULTILINE), "training")
    for job in study.cluster.jobs():
        shown = study.cluster.show(job)
        if shown["WorkDir"] == str(study.folder) and shown["JobState"] == "RUNNING":
            return job
    raise AssertionError(study.output)


def restarts(study: Study, job: str) -> int:
    """How often Slurm requeued a job."""
    return int(study.cluster.show(job)["Restarts"])


def test_a_cancelled_job_keeps_its_step_though_writing_is_slow(new_study):
    study = new_study(steps=LONG)
    study.slow_writes()
    process = study.start("--until", "train")
    job = training_job(study)
    study.cluster.run("scancel", job)
    study.wait(lambda: stopped_step(study), "the last checkpoint")
    assert study.newest_step() == stopped_step(study)
    study.wait(lambda: process.poll() == 1, "the end of the study")
    assert "was cancelled. Repeat the command to resume it" in study.output
    assert [study.cluster.show(job)["Restarts"] for job in study.jobs()] == [
        "0"
    ]  # not submitted again either


def test_a_run_takes_as_many_jobs_as_it_needs(new_study):
    study = new_study(steps=3, stop_after_minutes=1e-6)  # each process makes at least one step
    study.run("--until", "train", "--retries", "0")
    (run,) = study.trained()
    assert (run["steps"], run["resumes"]) == (3, 2)
    assert study.log().count("its next start resumes the run") == 2
    assert study.log().count("resumed from") == 2  # one log holds all attempts


def test_the_time_limit_sends_the_run_to_a_later_job(new_study):
    study = new_study(steps=LONG)
    # Slurm may warn a minute early, which is all the time that there is: the run looks at the clock, too.
    limit = ("--set-resources", "train:runtime=1", "train:slurm_extra=''")
    study.start("--until", "train", "--retries", "0", *limit)
    job = training_job(study)
    study.wait(lambda: restarts(study, job), "the requeue")
    step = stopped_step(study)
    assert study.newest_step() == step > 0
    study.wait(lambda: "resumed from results/checkpoints" in study.log(), "the next job")


@pytest.mark.parametrize("how", ["a node that dies", "a drained node", "preemption"])
def test_slurm_takes_the_job_back(new_study, how):
    study = new_study(steps=LONG, checkpoint_minutes=0.002)
    study.start("--until", "train", "--retries", "0")
    job = training_job(study)
    study.wait(study.newest_step, "a checkpoint")
    cluster, node = study.cluster, study.cluster.show(job)["BatchHost"]
    if how == "a drained node":
        cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
        cluster.run("scontrol", "requeue", job)
    elif how == "preemption":
        options = ("--exclusive", "--time=1", f"--nodelist={node}", "--wrap=true", "--output=/dev/null")
        cluster.run("sbatch", "--partition=urgent", *options)
    else:
        cluster.kill_node(node)
    study.wait(lambda: restarts(study, job) == 1 and "resumed from" in study.log(), "the next start")
    assert cluster.show(job)["JobState"] == "RUNNING"
    if how != "preemption":
        assert cluster.show(job)["BatchHost"] != node


def test_array_tasks_at_their_limit_go_back_each(new_study):
    study = new_study(steps=2, seeds=2, stop_after_minutes=1e-6)
    study.run("--until", "train", "--retries", "0", "--slurm-array-jobs", "train")
    assert [(run["steps"], run["resumes"]) for run in study.trained()] == [(2, 1), (2, 1)]
    assert sorted(run["config"]["seed"] for run in study.trained()) == [0, 1]
    assert len({study.cluster.show(job)["ArrayJobId"] for job in study.jobs()}) == 1
