"""How jobs are followed to their ends, with stand-ins for Slurm's commands; test_controller.py has the real ones."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from tests.slurm.standins import Job, submitted
from trm.slurm import requeue
from trm.slurm.commands import SlurmJob
from trm.slurm.executor import MORE, Executor


@pytest.mark.parametrize(
    ("state", "away", "output", "log", "end"),
    [
        ("", 1, None, None, "goes on"),
        ("", 1, 0, None, "goes on"),
        ("", 11, None, None, "goes on"),
        ("", 11, 0, None, "done"),
        ("", 0, 0, None, "done"),
        ("", 0, 60, 20, "Slurm does not know job 7, and its log says nothing for 10 minutes. "),
        ("", 0, None, 5, "goes on"),
        ("RUNNING", 0, 0, 20, "goes on"),
        ("COMPLETED", 0, None, None, "done"),
        ("TIMEOUT", 0, None, None, f"Slurm job 7 ended as TIMEOUT: {MORE['TIMEOUT']}. "),
        ("CANCELLED", 0, None, None, "Slurm job 7 was cancelled. Repeat the command to resume it. "),
    ],
)
def test_what_becomes_of_a_job(executor, answers, tmp_path, state, away, output, log, end):
    """By what Slurm says, by how long it has been silent, and by the ages of output and log in minutes. The job began
    half an hour ago, and squeue has not had it for twenty minutes."""
    answers("scancel", "")
    now, info = time.time(), submitted()
    info.job.output, info.job.log = (tmp_path / "training.json",), (tmp_path / "log",)
    for path, age in ((info.job.output[0], output), (info.job.log[0], log)):
        if age is not None:
            path.touch()
            os.utime(path, (now - 60 * age,) * 2)
    info.aux |= {"since": now - 1800, "unknown": now - 1200}
    executor.states = {"7": state} if state else {}
    executor._away = {"": now - 60 * away} if away else {}
    goes_on = executor.look(info) == [info]
    assert (goes_on, executor.succeeded, executor.failed) == (
        end == "goes on",
        ["a"] if end == "done" else [],
        [] if end in ("goes on", "done") else [("a", end)],
    )
    retried = info.job.restart_times > info.job.attempt - 1  # Snakemake's question
    assert retried is (state != "CANCELLED")
    # a job that counts as lost may live: it must not run beside the next one
    cancelled = (tmp_path / "calls").read_text() if (tmp_path / "calls").exists() else ""
    assert cancelled == ("scancel --name=small.train.a 7\n" if "does not know" in end else "")


@pytest.mark.parametrize(
    ("record", "state"),
    [
        ("RUNNING|None", "RUNNING"),
        ("PENDING|Priority", "PENDING"),
        ("CANCELLED|None", None),
        ("CANCELLED by 0|None", "CANCELLED"),
        ("COMPLETED|None", "COMPLETED"),
    ],
)
def test_records_are_asked_about_jobs_that_have_left_the_queue(executor, answers, tmp_path, record, state):
    """Records of jobs that a dead slurmctld had lost say that nobody cancelled them. The queue's 7 is a stranger's."""
    answers("squeue", f"8|RUNNING|None|{tmp_path}|small.train.b\n7|FAILED|None|/home|foreign")
    answers("sacct", f"7|{record}|{tmp_path}|small.train.a\n7|FAILED|None|/home|foreign")
    executor.status_rate_limiter = asyncio.Lock()
    asked = [SlurmJob("", "7", "small.train.a"), SlurmJob("", "8", "small.train.b")]
    found = asyncio.run(Executor._states(executor, asked))
    assert [found.get(job) for job in asked] == [state, "RUNNING"]
    assert "--jobs 7\n" in (tmp_path / "calls").read_text()


@pytest.mark.parametrize(
    ("state", "line", "more"),
    [
        ("FAILED", "srun: error: Invalid MPI type", ": srun: error: Invalid MPI type"),
        ("FAILED", "srun: error: n0: task 0: Exited with exit code 1", ""),
        ("FAILED", "srun: error: can not load PMIx library\nsrun: error: no context\nsrun: error: Invalid MPI type",
         ": srun: error: can not load PMIx library; srun: error: Invalid MPI type"),
        ("OUT_OF_MEMORY", "srun: error: n0: task 0: Out Of Memory", f": {MORE['OUT_OF_MEMORY']}"),
    ],
)  # fmt: skip
def test_a_failure_names_what_srun_says(executor, state, line, more):
    Path("log").write_text(f"{line}\n")
    executor.states = {"7": state}
    executor.look(submitted())
    assert executor.failed == [("a", f"Slurm job 7 ended as {state}{more}. ")]


@pytest.mark.parametrize(("cluster", "there"), [("", ""), ("beta", " -M beta")])
def test_a_reason_that_does_not_pass_by_itself_is_told_once(
    executor, answers, tmp_path, capsys, cluster, there
):
    answers(
        "squeue",
        f"7|PENDING|PartitionTimeLimit|{tmp_path}|small.train.a\n8|PENDING|Priority|{tmp_path}|small.b",
    )
    executor.status_rate_limiter = asyncio.Lock()
    asked = [SlurmJob(cluster, "7", "small.train.a"), SlurmJob(cluster, "8", "small.b")]
    for _ in range(2):
        asyncio.run(Executor._states(executor, asked))
    told = f"Slurm does not start job 7: PartitionTimeLimit (`scontrol{there} show job 7` says more)\n"
    assert capsys.readouterr().out == told


@pytest.mark.parametrize("later", ["PREEMPTED", ""])
def test_a_preempted_job_that_slurm_does_not_take_back_fails_with_its_cause(executor, later):
    """Also after Slurm has forgotten it."""
    executor.states = {"7": "PREEMPTED"}
    info = submitted()
    assert executor.look(info) == [info]
    executor.states = {"7": later} if later else {}
    info.aux["unknown"] -= 60 * executor.lost_minutes
    assert executor.look(info) == []
    assert executor.failed == [("a", "Slurm job 7 ended as PREEMPTED and was not put back into the queue. ")]


def test_a_job_to_which_slurm_gave_no_step_is_submitted_again_once(executor, answers, capsys):
    answers("squeue", "")
    answers("sbatch", "8")
    Path("log").write_text("srun: error: Unable to create step for job 7: Invalid generic resource (gres)\n")
    executor.states, info = {"7": "FAILED"}, submitted()
    assert executor.look(info) == []
    assert (executor.submitted, executor.failed, info.job.attempt) == ({"a": "8"}, [], 1)
    assert (
        "(Unable to create step for job 7: Invalid generic resource (gres)): it is" in capsys.readouterr().out
    )
    executor.look(info)
    ((_, sentence),) = executor.failed
    assert "ended as FAILED: srun: error: Unable to create step" in sentence


@pytest.mark.parametrize("state", ["FAILED", ""])
def test_a_run_that_stopped_before_its_limit_and_may_not_be_requeued_is_no_failure(executor, answers, state):
    """A site without requeueing: each stretch is another job, as often as it takes."""
    answers("squeue", "")
    answers("sbatch", "8")
    executor.states, info = {"7": state} if state else {}, submitted()
    for _ in range(3):
        requeue.AGAIN.mkdir(parents=True, exist_ok=True)
        (requeue.AGAIN / "7").touch()
        executor.look(info)
    assert (executor.submitted, executor.failed, info.job.attempt) == ({"a": "8"}, [], 1)
    assert not (requeue.AGAIN / "7").exists()


def test_all_jobs_are_cancelled_also_while_they_are_looked_at(executor, answers, script, tmp_path):
    """Snakemake's list of jobs is empty meanwhile. 9 is a stranger's by now: slurmctld had lost its state."""
    rows = [
        f"{number}|RUNNING|None|{tmp_path}|{name}"
        for number, name in ((7, "small.a"), (8, "small.b"), (9, "x"))
    ]
    script("squeue", f"echo '{chr(10).join(rows)}'")
    answers("scancel", "")
    executor._watch(Job(), SlurmJob("", "7", "small.a"), 0.0)
    executor._watch(Job(), SlurmJob("", "9", "small.c"), 0.0)
    executor.active_jobs, executor.shutdown = [], lambda: None
    executor.cancel()
    assert (tmp_path / "calls").read_text() == "scancel 7\n"
    executor._watch(Job(), SlurmJob("", "8", "small.b"), 0.0)  # sbatch returned only now
    assert (tmp_path / "calls").read_text() == "scancel 7\nscancel 8\n"
    asyncio.run(executor.sleep())  # ends at once


@pytest.mark.parametrize(("first", "pauses"), [(1, [1.25, 1.5625]), (40, [50, 62.5])])
def test_pauses_between_looks_grow_by_a_share(executor, first, pauses):
    """A short job whose end the user asks to see soon is not looked at ten seconds later."""
    info, executor.states = submitted(), {"7": "PENDING"}
    executor.workflow.executor_settings.init_seconds_before_status_checks = first
    executor.next_seconds_between_status_checks = first
    for pause in pauses:
        assert executor.look(info) == [info]
        assert executor.next_seconds_between_status_checks == pause
    for _ in range(30):
        executor.look(info)
    assert executor.next_seconds_between_status_checks == 120
    executor.states = {"7": "RUNNING"}
    executor.look(info)
    assert executor.next_seconds_between_status_checks == first
