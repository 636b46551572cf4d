"""A run that takes longer than one Slurm job: the job requeues itself and its run resumes.

Snakemake sees the same job pending and running again, so that none of its `retries` is used up.
"""

import os
import re
import subprocess
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

MARGIN_MINUTES = 5.0
"""Between the end of a run's stretch and the end of its job: time for the start of the job and for a checkpoint."""
AWAY = re.compile(
    r"Unable to contact slurm|Socket timed out|temporarily una|Connection (refused|reset|timed out)|standby mode"
    r"|Zero Bytes were transmitted",
    re.I,
)
"""Messages of Slurm's commands while slurmctld is unavailable."""
PAUSE = 5.0
"""Seconds between two attempts to reach it."""
RUNS = ("RUNNING", "SIGNALING")
"""squeue's states of a job that runs; the second while a signal, such as a preemption's, is on its way to a node."""

LOCATION = ("SLURM_CONF", "SLURM_CONF_SERVER")
"""Variables by which a site tells Slurm's commands where Slurm is."""


def location() -> dict[str, str]:
    """The variables that say where Slurm is."""
    return {name: os.environ[name] for name in LOCATION if name in os.environ}


def keep_location() -> None:
    """Have the plugin's job step leave `LOCATION` to srun: it removes them with all of Slurm's variables."""
    import snakemake_executor_plugin_slurm_jobstep as jobstep

    def start(call: str, *, env: dict[str, str], **options: Any) -> Any:
        return subprocess.Popen(call, env=env | location(), **options)

    jobstep.subprocess = SimpleNamespace(Popen=start, PIPE=subprocess.PIPE)


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
        say(f"Slurm job {job} is {state.lower() or 'unknown to squeue'} and is not requeued")
        return
    say(f"requeueing Slurm job {job}: its next start resumes the run")
    if problem := _answer("scontrol", "requeue", job):
        say(f"Slurm job {job} cannot be requeued ({problem}); start the run again to resume it")


def _answer(*words: str) -> str:
    """What a command prints or why it failed. It is repeated while Slurm does not answer and the job may have time."""
    end = time.monotonic() + 60 * (MARGIN_MINUTES - 1)
    while AWAY.search(text := ask(*words)[1]) and time.monotonic() < end:
        time.sleep(PAUSE)
    return text


def query_environment() -> dict[str, str]:
    """The environment without the user's own options of squeue and sacct (SQUEUE_PARTITION): they would hide jobs."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("SQUEUE_", "SACCT_"))}


def ask(*words: str) -> tuple[bool, str]:
    """Whether a command succeeded, and what it prints or why it failed."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=60, check=False, env=query_environment()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    if done.returncode:
        return False, (done.stderr or done.stdout).strip()
    return True, done.stdout.strip()
