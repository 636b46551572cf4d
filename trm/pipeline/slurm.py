"""A run that takes longer than one Slurm job: the job requeues itself and its run resumes.

Snakemake sees the same job pending and running again, so that none of its `retries` is used up.
"""

from __future__ import annotations

import os
import subprocess

MARGIN_MINUTES = 5.0
"""Between the end of a run's stretch and the end of its job: time for the start of the job and for a checkpoint."""


def stretch_minutes(limit: float) -> float:
    """Minutes that a process may train in a job of `limit` minutes."""
    return max(limit - MARGIN_MINUTES, limit / 2)


def requeue() -> str:
    """Requeue this process's Slurm job; Slurm then ends all of its processes.

    Returns a sentence that says what happened, empty outside Slurm. A job that is being cancelled stays
    cancelled.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        return ""
    state = _output("squeue", "--noheader", "--jobs", job, "--format", "%T")
    if state != "RUNNING":
        return f"Slurm job {job} is {state.lower() or 'unknown to squeue'} and is not requeued"
    problem = _output("scontrol", "requeue", job)
    if problem:
        return f"Slurm job {job} cannot be requeued ({problem}); start the run again to resume it"
    return f"Slurm job {job} is requeued and will resume there"


def _output(*words: str) -> str:
    """What a command prints, or why it failed."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout or done.stderr).strip()
