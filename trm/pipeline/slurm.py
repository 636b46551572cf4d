"""A run that takes longer than one Slurm job: the job requeues itself and its run resumes.

Snakemake sees the same job pending and running again, so that none of its `retries` is used up.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

MARGIN_MINUTES = 5.0
"""Between the end of a run's stretch and the end of its job: time for the start of the job and for a checkpoint."""


def stretch_minutes(limit: float) -> float:
    """Minutes that a process may train in a job of `limit` minutes."""
    return max(limit - MARGIN_MINUTES, limit / 2)


def requeue(say: Callable[[str], object]) -> None:
    """Requeue this process's Slurm job, and say so first: Slurm then ends all of its processes at once.

    A job that is being cancelled stays cancelled. Does nothing outside Slurm.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        return
    state = _output("squeue", "--noheader", "--jobs", job, "--format", "%T")
    if state != "RUNNING":
        say(f"Slurm job {job} is {state.lower() or 'unknown to squeue'} and is not requeued")
        return
    say(f"requeueing Slurm job {job}: its next start resumes the run")
    if problem := _output("scontrol", "requeue", job):
        say(f"Slurm job {job} cannot be requeued ({problem}); start the run again to resume it")


def _output(*words: str) -> str:
    """What a command prints, or why it failed."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout or done.stderr).strip()
