"""A run that takes longer than one Slurm job: the job requeues itself and its run resumes.

Snakemake sees the same job pending and running again, so that none of its `retries` is used up.
"""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from trm.slurm.commands import AWAY, ask

MARGIN_MINUTES = 5.0
"""Between the end of a run's stretch and the end of its job: time for the start of the job and for a checkpoint."""
PAUSE = 5.0
"""Seconds between two attempts to reach slurmctld."""
RUNS = ("RUNNING", "SIGNALING")
"""squeue's states of a job that runs; the second while a signal, such as a preemption's, is on its way to a node."""
AGAIN = Path(".snakemake/slurm_again")
"""A file for each job that stopped before its time limit and may not be requeued: the controller submits it again."""


def stretch_minutes(limit: float) -> float:
    """Minutes that a process may train in a job that ends in `limit` minutes."""
    return max(limit - MARGIN_MINUTES, limit / 2)


def job_id() -> str:
    """This process's Slurm job, or its task of an array; empty outside Slurm.

    An array's id is also the id of one of its tasks, but Slurm's commands take it for the whole array.
    """
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")


def minutes_left() -> float | None:
    """Minutes until Slurm ends this job; None outside Slurm or without a limit. The runs of a group share one job."""
    if not (job := job_id()):
        return None
    left = re.fullmatch(
        r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", ask("squeue", "-h", "--jobs", job, "-o", "%L")[1]
    )
    if left is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in left.groups())
    return days * 1440 + hours * 60 + minutes + seconds / 60


def requeue(say: Callable[[str], object]) -> None:
    """Requeue this process's Slurm job, and say so first: Slurm then ends all of its processes at once.

    A job that is being cancelled stays cancelled. Does nothing outside Slurm.
    """
    if not (job := job_id()):
        return
    state = _answer("squeue", "--noheader", "--jobs", job, "--format", "%T")
    if state not in RUNS:
        say(
            f"Slurm ends job {job} already ({state or 'unknown to squeue'}) and decides whether it starts again"
        )
        return
    say(f"requeueing Slurm job {job}: its next start resumes the run")
    if problem := _answer("scontrol", "requeue", job):
        say(f"Slurm does not requeue job {job} ({problem}): a new job resumes the run")
        AGAIN.mkdir(parents=True, exist_ok=True)
        (AGAIN / job).touch()


def _answer(*words: str) -> str:
    """What a command prints or why it failed. It is repeated while Slurm does not answer and the job may have time."""
    end = time.monotonic() + 60 * (MARGIN_MINUTES - 1)
    while AWAY.search(text := ask(*words)[1]) and time.monotonic() < end:
        time.sleep(PAUSE)
    return text
