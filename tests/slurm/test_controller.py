"""Controllers that are killed, stopped or lose Slurm."""

import os
import signal

import pytest

from tests.slurm.test_interruptions import LONG, outage, restarts, stopped_steps, training_job
from trm.slurm.causes import refusal

QOS = ("qos", "normal")


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
    study.start("--until", "train")
    study.wait(lambda: study.output.count("not submitted again") == 2, "the second controller")
    study.wait(lambda: all("step 10/" in log for log in study.logs(2)), "training")
    study.cluster.run("scancel", *study.jobs())
    study.wait_for_failure()
    assert study.output.count("was cancelled. Repeat the command to resume it") == 2
    assert [restarts(study, job) for job in study.jobs()] == [0, 0]  # not submitted again either
    # though writing is slow
    assert study.newest_steps() == stopped_steps(study)
    assert len(stopped_steps(study)) == 2


def test_what_keeps_a_job_from_starting_is_said(new_study):
    study = new_study(steps=LONG)
    cluster, asked = study.cluster, ("train:runtime=300", "train:gpu=0")
    process = study.start("--until", "train", "--set-resources", *asked, "--config", "lost_minutes=0.02")
    study.wait(lambda: "(PartitionTimeLimit): it asks for more than one job may have" in study.output, "it")
    (job,) = study.jobs()
    cluster.run("scontrol", "uhold", job)
    cluster.run("scontrol", "update", f"jobid={job}", "timelimit=10")
    held = f"(JobHeldUser): it is held: release it (`scontrol release {job}`)"
    study.wait(lambda: held in study.output, "it")
    for limit, whom, said in (
        ("GrpTRESMins=cpu=0", (), "(AssocGrpCPUMinutesLimit): the computing time of its account"),
        ("MaxJobsPerUser=0", QOS, "(QOSMaxJobsPerUserLimit): what you, your account or QOS may use at once"),
        ("MinTRESPerJob=gres/gpu=1", QOS, "(QOSMinGRES): it asks for less than its partition or QOS is for"),
    ):
        with cluster.limited(limit, *whom):
            cluster.run("scontrol", "release", job)
            study.wait(lambda: said in study.output, said)  # noqa: B023
            cluster.run("scontrol", "uhold", job)
    process.send_signal(signal.SIGINT)
    study.wait(lambda: process.poll() == 1, "the end of the study")
    assert cluster.show(job)["JobState"] == "CANCELLED"


def test_jobs_that_wait_to_be_submitted_end_with_sigterm(new_study):
    study = new_study(steps=LONG)
    with study.cluster.limited("MaxSubmitJobs=0"):
        process = study.start("--until", "train")
        study.wait(lambda: "Slurm takes no more jobs for now (AssocMaxSubmitJobLimit" in study.output, "it")
        process.terminate()
        study.wait(lambda: process.poll() == 1, "the end of the study")
    assert "not submitted: the workflow ends" in study.output


def test_without_slurm_nothing_starts(new_study):
    study = new_study(steps=LONG)
    del study.environment["SLURM_CONF"]
    process = study.start("--until", "train")
    study.wait(lambda: process.poll() == 1, "the end of the study")
    sentence = "Error: Slurm does not answer: scontrol: fatal: Could not establish a configuration source\n"
    assert sentence in study.output


def test_what_slurm_refuses_for_good_is_not_tried_again(new_study):
    study = new_study(steps=LONG)
    with study.cluster.configured("EnforcePartLimits=ALL"):
        process = study.start("--until", "train", "--set-resources", "train:runtime=300")
        study.wait(lambda: process.poll() == 1, "the end of the study")
    (line,) = [line for line in study.output.splitlines() if "Slurm refuses" in line]
    assert "Requested time limit is invalid (missing or exceeds some limit): lower max_runtime" in line
    assert "Trying to restart" not in study.output


def test_each_refusal_of_sbatch_has_its_remedy(cluster):
    def refused(*options):
        with pytest.raises(AssertionError) as answer:
            cluster.run("sbatch", *options, "--wrap=true")
        sentence, final = refusal(str(answer.value))
        assert final
        return sentence

    assert "(SBATCH_ACCOUNT)" in refused("--account=nobody")
    assert "(SBATCH_PARTITION)" in refused("--partition=none")
    assert "name a QOS" in refused("--qos=none")
    for asked in ("--gpus=a100:9", "--gres=gpu:v100:1", "--gres=fpga:1", "--constraint=none", "--mem=1T"):
        assert "no node of its partition has what it asks for" in refused(asked)
    with cluster.limited("flags=DenyOnLimit", *QOS), cluster.limited("MinTRESPerJob=gres/gpu=1", *QOS):
        assert "slurm_partition=NAME" in refused("--gpus=0")


def test_a_job_that_slurm_has_lost_is_submitted_again(new_study):
    study = new_study(steps=LONG, checkpoint_minutes=0.002)
    study.start("--until", "train", "--retries", "1", "--config", "lost_minutes=0.1")
    training_job(study)
    study.wait(study.newest_steps, "a checkpoint")
    outage(study, "-c")  # without its state
    study.wait(lambda: "Slurm does not know job" in study.output, "the notice")
    study.wait(lambda: "resumed from" in study.log(), "the next start")


def test_a_slurm_that_hangs_loses_no_job_and_runs_none_twice(new_study):
    """At the submission, of which sbatch hears nothing, and when the job's program starts."""
    study = new_study(steps=20)
    submission, start = study.hang_at("sbatch"), study.hang_at("srun")
    process = study.start("--until", "train", "--retries", "0")
    study.wait(submission.exists, "the submission")
    with study.cluster.frozen("slurmctld"):
        study.wait(lambda: "for now (Socket timed out" in study.output, "the end of sbatch")
    study.wait(start.exists, "the job's script")
    with study.cluster.frozen("slurmctld"):
        study.wait(lambda: "Unable to confirm allocation" in study.slurm_logs(), "the start of the program")
        study.wait(lambda: "Slurm does not answer" in study.output, "the notice")
    study.wait(lambda: process.poll() is not None, "the end of the study")
    assert process.returncode == 0, study.output
    assert "not submitted again" in study.output
    assert "Slurm answers again" in study.output
    job, _ = sorted(study.jobs(), key=int)
    assert f"Slurm did not start the program of job {job} (Unable to confirm" in study.output
    assert [run["resumes"] for run in study.trained()] == [0]


def test_accounting_knows_jobs_that_have_left_the_queue(new_study):
    """An array of two, of which the limit lets in one at a time, and an outage."""
    study = new_study(steps=800, seeds=2)
    cluster = study.cluster
    with cluster.limited("MaxSubmitJobs=1"), cluster.configured("MinJobAge=2"):
        process = study.start("--until", "train", "--retries", "0", "--slurm-array-jobs", "train")
        study.wait(lambda: "step 20/" in study.log(), "training")
        assert "Slurm takes no more jobs for now" in study.output
        outage(study)
        study.wait(lambda: process.poll() is not None, "the end of the study")
    assert process.returncode == 0, study.output
    assert [run["resumes"] for run in study.trained()] == [0, 0]
