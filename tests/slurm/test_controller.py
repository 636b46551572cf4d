"""Controllers that are killed, lose Slurm or meet each other."""

import os
import signal

from tests.slurm.test_interruptions import LONG, training_job


def test_a_killed_controllers_jobs_are_taken_over(new_study):
    study = new_study(steps=LONG, seeds=2)
    command = ("--until", "train", "--retries", "0")
    process = study.start(*command)
    study.wait(lambda: len(study.running()) == 2, "both jobs")
    names = {study.cluster.show(job)["JobName"] for job in study.jobs()}
    assert len(names) == 2
    assert all(name.startswith("small.train.sudoku4-") for name in names)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    again = study.start(*command)
    study.wait(lambda: study.output.count("from an earlier start") == 2, "the second controller")
    assert len(study.jobs()) == 2
    study.cluster.run("scancel", *study.jobs())
    study.wait(lambda: again.poll() == 1, "the end of the study")
    assert len(study.jobs()) == 2


def outage(study, *options):
    """End slurmctld until the controller has noticed it, and start it again."""
    study.cluster.end_controller()
    study.wait(lambda: "Slurm does not answer" in study.output, "the notice")
    study.cluster.start_controller(*options)


def test_an_outage_of_slurm_costs_nothing(new_study):
    study = new_study(steps=1500)
    process = study.start("--until", "train", "--retries", "0")
    training_job(study)
    outage(study)
    study.wait(lambda: process.poll() == 0, "the end of the study")
    (run,) = study.trained()
    assert run["resumes"] == 0


def test_a_job_that_slurm_has_lost_is_submitted_again(new_study):
    study = new_study(steps=LONG, checkpoint_minutes=0.002)
    study.start("--until", "train", "--retries", "1", "--config", "lost_minutes=0.1")
    training_job(study)
    study.wait(study.newest_step, "a checkpoint")
    outage(study, "-c")  # without its state
    study.wait(lambda: "Slurm does not know job" in study.output, "the notice")
    study.wait(lambda: "resumed from" in study.log(), "the next start")


def test_accounting_knows_jobs_that_have_left_the_queue(recorded_study):
    """An array of two, of which the limit lets in one at a time, and an outage."""
    study = recorded_study(steps=800, seeds=2)
    study.cluster.run("sacctmgr", "-i", "modify", "user", study.cluster.user, "set", "MaxSubmitJobs=1")
    process = study.start("--until", "train", "--retries", "0", "--slurm-array-jobs", "train")
    study.wait(lambda: "step 20/" in study.log(), "training")
    assert "Slurm takes no more jobs for now" in study.output
    outage(study)
    study.wait(lambda: process.poll() == 0, "the end of the study")
    assert [run["resumes"] for run in study.trained()] == [0, 0]
