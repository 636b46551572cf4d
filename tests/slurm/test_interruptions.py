"""Slurm jobs that end before their run is finished keep the step and use no retry."""

import re

from tests.slurm.conftest import Study

LONG = 1_000_000
SLOWLY = {"checkpoint_minutes": 1e-6, "log_every": 1}
"""With `slow_writes` a run spends its time in waiting."""


def outage(study: Study, *options: str) -> None:
    """End slurmctld until the controller has noticed it, and start it again."""
    study.cluster.end_controller()
    study.wait(lambda: "Slurm does not answer" in study.output, "the notice")
    study.cluster.start_controller(*options)


def stopped_steps(study: Study) -> list[int]:
    """The step at which each run stopped last, from its log."""
    found = [re.findall(r"^stopped at step (\d+)", log, re.MULTILINE) for log in study.logs()]
    return sorted(int(steps[-1]) for steps in found if steps)


def training_job(study: Study) -> str:
    """The training job, once training has made a step."""
    study.wait(lambda: re.search(r"^ +\d+ %|step \d+/", study.log(), re.MULTILINE), "training")
    (job,) = study.running()
    return job


def restarts(study: Study, job: str) -> int:
    """How often Slurm requeued a job."""
    return int(study.cluster.show(job)["Restarts"])


def test_the_time_limit_sends_the_run_to_a_later_job_and_an_outage_costs_nothing(new_study):
    study = new_study(steps=LONG, **SLOWLY)
    study.slow_writes()
    # Slurm may warn a minute early, which is all the time that there is: the run looks at the clock, too.
    limit = ("--set-resources", "train:runtime=1", "train:slurm_extra=''")
    study.start("--until", "train", "--retries", "0", *limit)
    job = training_job(study)
    outage(study)
    study.wait(lambda: "Slurm answers again" in study.output, "the end of the outage")
    study.wait(lambda: restarts(study, job), "the requeue")
    assert study.newest_steps() == stopped_steps(study) > [0]
    study.wait(lambda: "resumed from results/checkpoints" in study.log(), "the next job")


def test_slurm_takes_a_job_back_after_preemption_a_drain_and_the_death_of_a_node_and_a_lost_one_is_submitted_again(
    new_study,
):
    study = new_study(steps=LONG, **SLOWLY)
    study.slow_writes()
    study.start("--until", "train", "--retries", "1", "--config", "lost_minutes=0.1")
    job = training_job(study)
    study.wait(study.newest_steps, "a checkpoint")
    cluster = study.cluster

    def preempt(node):
        options = ("--exclusive", "--time=1", f"--nodelist={node}", "--wrap=true", "--output=/dev/null")
        cluster.run("sbatch", "--partition=urgent", *options)

    def drain(node):
        cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
        assert cluster.show(job)["JobState"] == "RUNNING"
        cluster.run("scontrol", "requeue", job)

    for count, take in enumerate((preempt, drain, cluster.kill_node), 1):
        node = cluster.show(job)["BatchHost"]
        take(node)
        study.wait(lambda: restarts(study, job) == count, f"{take.__name__}: the requeue")  # noqa: B023
        study.wait(lambda: study.log().count("resumed from") == count, "the next start")  # noqa: B023
        if take is not preempt:
            assert cluster.show(job)["BatchHost"] != node
        if take is drain:
            cluster.run("scontrol", "update", f"nodename={node}", "state=resume")
    assert cluster.show(job)["JobState"] == "RUNNING"
    assert study.jobs() == [job]
    outage(study, "-c")  # without its state
    study.wait(lambda: "Slurm does not know job" in study.output, "the notice")
    study.wait(lambda: study.log().count("resumed from") == 4, "the next start")


def test_a_run_at_its_limit_goes_back_in_the_same_job(new_study):
    study = new_study(steps=2, stop_after_minutes=1e-6)  # each process makes at least one step
    study.run("--until", "train", "--retries", "0")
    assert [(run["steps"], run["resumes"]) for run in study.trained()] == [(2, 1)]
    assert len(study.jobs()) == 1
    assert study.log().count("its next start resumes the run") == study.log().count("resumed from") == 1
