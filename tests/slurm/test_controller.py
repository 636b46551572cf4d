"""Controllers that are killed, stopped or lose Slurm."""

import os
import signal

from tests.slurm.test_interruptions import LONG, outage, restarts, stopped_steps, training_job


def test_a_killed_controllers_jobs_are_taken_over_and_cancelled_for_good(new_study):
    study = new_study(steps=LONG, seeds=2)
    study.slow_writes()
    process = study.start("--until", "train")
    study.wait(lambda: len(study.running()) == 2, "both jobs")
    names = {study.cluster.show(job)["JobName"] for job in study.jobs()}
    assert len(names) == 2
    assert all(name.startswith("small.train.sudoku4-") for name in names)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    again = study.start("--until", "train")
    study.wait(lambda: study.output.count("from an earlier start") == 2, "the second controller")
    study.wait(lambda: all("step 10/" in log for log in study.logs(2)), "training")
    study.cluster.run("scancel", *study.jobs())
    study.wait(lambda: again.poll() == 1, "the end of the study")
    assert study.output.count("was cancelled. Repeat the command to resume it") == 2
    assert [restarts(study, job) for job in study.jobs()] == [0, 0]  # not submitted again either
    # though writing is slow
    assert study.newest_steps() == stopped_steps(study)
    assert len(stopped_steps(study)) == 2


def test_a_job_that_never_starts_is_named_and_ends_with_its_controller(new_study):
    study = new_study(steps=LONG)
    process = study.start("--until", "train", "--set-resources", "train:runtime=300")
    study.wait(lambda: "(PartitionTimeLimit): change it" in study.output, "the notice")
    process.send_signal(signal.SIGINT)
    study.wait(lambda: process.poll() == 1, "the end of the study")
    (job,) = study.jobs()
    assert study.cluster.show(job)["JobState"] == "CANCELLED"


def test_a_job_that_slurm_has_lost_is_submitted_again(new_study):
    study = new_study(steps=LONG, checkpoint_minutes=0.002)
    study.start("--until", "train", "--retries", "1", "--config", "lost_minutes=0.1")
    training_job(study)
    study.wait(study.newest_steps, "a checkpoint")
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
