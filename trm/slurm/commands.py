"""Slurm's commands: what they answer, which jobs they list, and what their messages mean."""

import os
import re
import subprocess
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

AWAY = re.compile(
    r"Unable to contact slurm|Socket timed out|temporarily una|Connection (refused|reset|timed out)|standby mode"
    r"|Zero Bytes were transmitted",
    re.I,
)
"""Messages of Slurm's commands while slurmctld is unavailable."""
PASSING = re.compile(r"(Max|Grp)SubmitJob|Required partition not available|I/O error writing script", re.I)
"""Refusals of sbatch that end by themselves: a limit, a partition in maintenance, a full disk of slurmctld."""
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_MPI_TYPE")
"""Variables by which a site or user tells Slurm's commands where Slurm is, who asks, and how srun starts programs."""
ENDED = (
    *("COMPLETED", "CANCELLED", "BOOT_FAIL", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "TIMEOUT"),
    *("NODE_FAIL", "PREEMPTED"),
)
"""In all other states, such as SIGNALING, Slurm still has the job."""


class SlurmJob(NamedTuple):
    """A job of Slurm. Its number alone may belong to another cluster, or to another job after slurmctld has lost its
    state."""

    cluster: str
    """Empty: the one that commands ask by default."""
    number: str
    name: str


class Row(NamedTuple):
    """What squeue or sacct says of a job."""

    number: str
    state: str
    reason: str
    folder: str
    name: str


def ask(*words: str) -> tuple[bool, str]:
    """Whether a command succeeded, and what it prints or why it failed."""
    # without the user's own options of squeue and sacct (SQUEUE_PARTITION), which would hide jobs
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SQUEUE_", "SACCT_"))}
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=own)
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    if done.returncode:
        return False, (done.stderr or done.stdout).strip()
    return True, done.stdout.strip()


def queue(cluster: str) -> list[Row] | None:
    """This user's jobs on a cluster that its slurmctld still knows, also in hidden partitions; None: no answer."""
    columns = ("--states=all", "--noheader", "--format=%i|%T|%r|%Z|%j")
    answers, text = ask("squeue", "--all", "--me", *columns, *_on(cluster))
    return _rows(text) if answers else None


def records(cluster: str, numbers: Iterable[str]) -> list[Row]:
    """What accounting says of jobs; empty without accounting."""
    columns = ("-X", "--noheader", "--parsable2", "--format=JobID,State,Reason,WorkDir,JobName")
    answers, text = ask("sacct", *columns, "--jobs", ",".join(numbers), *_on(cluster))
    # a job that nobody cancelled was lost: slurmctld came back without its state
    rows = (row for row in _rows(text if answers else "") if row.state not in ("", "CANCELLED"))
    return [row._replace(state=row.state.split()[0]) for row in rows]


def cancel(job: SlurmJob) -> None:
    """Cancel a job, and no other one that has its number."""
    ask("scancel", f"--name={job.name}", *_on(job.cluster), job.number)


def cancel_all(cluster: str, numbers: Iterable[str]) -> str:
    """Cancel jobs; returns a problem or an empty text."""
    done, text = ask("scancel", *_on(cluster), *numbers)
    return "" if done else text


def has_ended(cluster: str, number: str) -> bool:
    """Whether Slurm says that a job of anybody has ended, or does not know it. False: it runs, or no answer came."""
    local = re.search(r"^ClusterName\s*= (\S+)", ask("scontrol", "show", "config")[1], re.M)
    on = () if local is None or local[1] == cluster else _on(cluster)
    answers, text = ask(
        "squeue", "--all", "--noheader", "--states=all", "--format=|%T", f"--jobs={number}", *on
    )
    if not answers:
        return "Invalid job id" in text
    return {*re.findall(r"^\|(\S+)", text, re.M)} <= {*ENDED}


def message_of(problem: str) -> str:
    """What sbatch printed, in a line."""
    lines = re.findall(r"sbatch: error: (.*)", problem) or problem.strip().splitlines()[-1:]
    return "; ".join(line.removeprefix("Batch job submission failed: ").strip() for line in lines)


def forget_job() -> None:
    """Remove the variables of the job in which Snakemake itself runs."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        if name not in (*KEPT, "SLURM_CLUSTERS"):
            del os.environ[name]


def keep_variables() -> None:
    """Have the plugin's job step leave `KEPT` to srun: it removes them with all of Slurm's variables."""
    import snakemake_executor_plugin_slurm_jobstep as jobstep

    def start(call: str, *, env: dict[str, str], **options: Any) -> Any:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        return subprocess.Popen(call, env=env | kept, **options)

    jobstep.subprocess = SimpleNamespace(Popen=start, PIPE=subprocess.PIPE)


def _rows(text: str) -> list[Row]:
    """Rows of `number|state|reason|folder|name`; other lines are headings of clusters and the site's announcements."""
    return [Row(*line.split("|", 4)) for line in text.splitlines() if line.count("|") >= 4]


def _on(cluster: str) -> tuple[str, ...]:
    return (f"--clusters={cluster}",) if cluster else ()
