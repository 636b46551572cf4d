"""Controllers that are killed, stopped or lose Slurm."""

from tests.slurm.test_interruptions import LONG, SLOWLY, outage, restarts, stopped_steps


def test_a_killed_controllers_jobs_are_taken_over_and_cancelled_for_good(new_study):
    """The controller is a Slurm job, which goes on on another node; its jobs are another cluster's."""
    study = new_study(steps=LONG, seeds=2, **SLOWLY)
    home, study.cluster = study.cluster, study.cluster.start_other()
    study.environment["SBATCH_CLUSTERS"] = "other"
    study.slow_writes()
    controller = ("srun", "--ntasks=1", "--mem=4G", "--account=lab", "--job-name=controller")
    process = study.start("--until", "train", before=(*controller, "--nodelist=n0"))
    study.wait(lambda: len(study.running()) == 2, "both jobs")
    names = {study.cluster.show(job)["JobName"] for job in study.jobs()}
    assert len(names) == 2
    assert all(name.startswith("small.train.sudoku4-") for name in names)
    home.run("scancel", "--signal=KILL", "--name=controller")
    process.wait()
    study.start("--until", "train", before=(*controller, "--nodelist=n1"))
    study.wait(lambda: study.output.count("not submitted again") == 2, "the second controller")
    study.wait(lambda: all("step 2/" in log for log in study.logs(2)), "training")
    study.cluster.run("scancel", *study.jobs())
    study.wait_for_failure()
    assert study.output.count("was cancelled. Repeat the command to resume it") == 2
    assert [restarts(study, job) for job in study.jobs()] == [0, 0]  # not submitted again either
    # though writing is slow
    assert study.newest_steps() == stopped_steps(study)
    assert len(stopped_steps(study)) == 2


def test_jobs_that_wait_to_be_submitted_end_with_sigterm(new_study):
    study = new_study(steps=LONG)
    with study.cluster.limited("MaxSubmitJobs=0"):
        process = study.start("--until", "train")
        study.wait(lambda: "Slurm takes no more jobs for now (AssocMaxSubmitJobLimit" in study.output, "it")
        process.terminate()
        study.wait(lambda: process.poll() == 1, "the end of the study")
    assert "not submitted: the workflow ends" in study.output


def test_a_slurm_that_hangs_loses_no_job_and_runs_none_twice(new_study):
    """At the submission, of which sbatch hears nothing, and when the job's program starts."""
    study = new_study(steps=20)
    adopted = study.folder / "adopted"
    submission, start = study.hang_at("sbatch"), study.hang_at("srun", once=adopted)
    process = study.start("--until", "train", "--retries", "0")
    study.wait(submission.exists, "the submission")
    with study.cluster.frozen("slurmctld"):
        study.wait(lambda: "for now (Socket timed out" in study.output, "the end of sbatch")
    study.wait(lambda: "not submitted again" in study.output, "the job that sbatch has left")
    adopted.touch()
    study.wait(start.exists, "the job's script")
    with study.cluster.frozen("slurmctld"):
        study.wait(lambda: "Unable to confirm allocation" in study.slurm_logs(), "the start of the program")
        study.wait(lambda: "Slurm does not answer" in study.output, "the notice")
    study.wait(lambda: process.poll() is not None, "the end of the study")
    assert process.returncode == 0, study.output
    assert "Slurm answers again" in study.output
    job, _ = sorted(study.jobs(), key=int)
    assert f"Slurm job {job} got no program started (Unable to confirm" in study.output
    assert [run["resumes"] for run in study.trained()] == [0]


def test_accounting_knows_jobs_that_have_left_the_queue(new_study):
    """Of two jobs the limit lets in one at a time; and an outage."""
    study = new_study(steps=800, seeds=2)
    cluster = study.cluster
    with cluster.limited("MaxSubmitJobs=1"), cluster.configured("MinJobAge=2"):
        process = study.start("--until", "train", "--retries", "0")
        study.wait(lambda: "step 20/" in study.log(), "training")
        assert "Slurm takes no more jobs for now" in study.output
        outage(study)
        study.wait(lambda: process.poll() is not None, "the end of the study")
    assert process.returncode == 0, study.output
    assert [run["resumes"] for run in study.trained()] == [0, 0]
