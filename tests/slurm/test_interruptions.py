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
    study.start("--until", "train", "--retries", "0")
    job = training_job(study)
    study.cluster.run("scancel", job)
    study.wait(lambda: stopped_step(study), "the last checkpoint")
    assert study.newest_step() == stopped_step(study)
    study.wait(lambda: study.cluster.jobs()[job] == "CANCELLED", "the end of the job")
    assert restarts(study, job) == 0


def test_a_run_takes_as_many_jobs_as_it_needs(new_study):
    study = new_study(steps=3, stop_after_minutes=1e-6)  # each process makes at least one step
    study.run("--until", "train", "--retries", "0")
    (run,) = study.trained()
    assert (run["steps"], run["resumes"]) == (3, 2)
    assert study.log().count("its next start resumes the run") == 2
    assert study.log().count("resumed from") == 2  # one log holds all attempts


def test_the_time_limit_sends_the_run_to_a_later_job(new_study):
    study = new_study(steps=LONG)
    # Slurm checks time limits every 30 s, the shortest is a minute, and training needs some seconds to start.
    limit = ("--set-resources", "train:runtime=1", "train:slurm_extra='--signal=TERM@30'")
    study.start("--until", "train", "--retries", "0", *limit)
    job = training_job(study)
    study.wait(lambda: restarts(study, job), "the requeue")
    step = stopped_step(study)
    assert study.newest_step() == step > 0
    study.wait(lambda: "resumed from results/checkpoints" in study.log(), "the next job")


@pytest.mark.parametrize("how", ["a node that goes down", "a requeue", "preemption"])
def test_slurm_takes_the_job_back(new_study, how):
    study = new_study(steps=LONG, checkpoint_minutes=0.002)
    study.start("--until", "train", "--retries", "0")
    job = training_job(study)
    study.wait(study.newest_step, "a checkpoint")
    run, node = study.cluster.run, study.cluster.host
    if how == "a requeue":
        run("scontrol", "requeue", job)
    elif how == "preemption":
        run("sbatch", "--partition=urgent", "--exclusive", "--time=1", "--wrap=true", "--output=/dev/null")
    else:
        run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        # A node with processes that have not ended cannot start the job again.
        study.wait(lambda: not study.cluster.steps(job), "the end of the processes")
        run("scontrol", "update", f"nodename={node}", "state=resume")
    study.wait(lambda: restarts(study, job) == 1 and "resumed from" in study.log(), "the next start")
    assert study.cluster.show(job)["JobState"] == "RUNNING"


def test_a_killed_controller_costs_nothing(new_study):
    study = new_study(steps=1500)
    process = study.start("--until", "train", "--retries", "0")
    training_job(study)
    study.cluster.kill_controller()
    study.cluster.start_controller()
    assert process.wait(timeout=240) == 0, study.output
    (run,) = study.trained()
    assert run["resumes"] == 0
