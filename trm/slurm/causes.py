"""Why Slurm refuses, holds back or ends a job, in words, and what its user can do about it."""

import re
import shutil
from pathlib import Path

from trm.errors import UserError
from trm.slurm.requeue import AWAY, ask

FULL = re.compile(r"(Max|Grp)SubmitJob")
ORDINARY = ("None", "Priority", "Resources", "BeginTime", "Dependency", "Cleaning")
"""Reasons of a pending job that pass by themselves."""
TOO_LARGE = "it asks for more than one job may have: change it (`scontrol update`), or cancel it and lower {}"
AT_ONCE = "what you, your account or QOS may use at once is in use: it starts when other jobs end"
OTHER_PARTITION = "give its rule another partition (--set-resources RULE:slurm_partition=NAME)"
WAITS = (
    (r"HeldAdmin", True, "an administrator holds it: only they can release it"),
    (r"held", True, "it is held: release it (`scontrol release {job}`) or cancel it (`scancel {job}`)"),
    (r"MaxWall|TimeLimit", True, TOO_LARGE.format("max_runtime")),
    (r"PerJob|MaxMemPerLimit|PartitionNode", True, TOO_LARGE.format("gpus, nodes or mem_mb")),
    (r"PartitionConfig", False, TOO_LARGE.format("gpus, nodes or mem_mb")),
    (r"QOSMin", True, f"it asks for less than its partition or QOS is for, such as no GPU: {OTHER_PARTITION}"),
    (r"Invalid|NotAllowed|NeverSatisfied|BadConstraints", True, "it cannot start as it is: change it (`scontrol "
     "update`) or cancel it (`scancel {job}`)"),
    (r"RunMinutes", False, AT_ONCE),
    (r"Minutes|GrpWall", False, "the computing time of its account or QOS is used up: ask for more, or cancel it and "
     "name another account (SBATCH_ACCOUNT)"),
    (r"Grp|PerUser|PerAccount|MaxJobs", False, AT_ONCE),
    (r"NodeNotAvail|DOWN|Reserv", False, "nodes that it needs are down, drained or reserved: `sinfo -R` says why"),
    (r"", False, "`scontrol show job {job}` says more"),
)  # fmt: skip
"""A reason of squeue, whether it stays until somebody intervenes, and words for it."""
REFUSALS = (
    (r"SelectType plugin", "docs/cluster.md has another way to ask this Slurm for GPUs"),
    (r"QOSMin", OTHER_PARTITION),
    (r"QOS policy", "ask for less (gpus, nodes, mem_mb, max_runtime), or use another account or QOS"),
    (r"account", "name one of `sacctmgr show associations user=$USER` (SBATCH_ACCOUNT)"),
    (r"partition", "name one of `sinfo --summarize` that you may use (SBATCH_PARTITION)"),
    (
        r"[Tt]ime limit|--time",
        "lower max_runtime, or choose another partition: `sinfo --summarize` has their limits",
    ),
    (r"qos", "name a QOS of `sacctmgr show associations user=$USER`"),
    (
        r"gres|feature|configuration|Memory|processors|Node count|Invalid generic",
        "no node of its partition has what it asks for; `sinfo --format '%P %c %m %G %f'` lists their processors, "
        "memory, GPUs and features",
    ),
)
"""sbatch's answers that will not change, and what to do."""
STARVED = re.compile(r"exceeded (job |step )?memory limit|oom.kill", re.I)
"""What slurmstepd writes into a job's log when it kills it for its memory."""
DENIED = re.compile(r"^srun: error: (Unable to (?:create step|confirm allocation) for job .*)", re.M)
"""What srun writes into a job's log when slurmctld gives it no step: it does not answer, or was started seconds ago and
has given the job no GPU of a node that had not registered yet (22.05)."""


def unfit(gpus: int) -> str:
    """A sentence about a Slurm that takes no request for GPUs; empty if it does. UserError: no Slurm, or no answer."""
    if not shutil.which("scontrol"):
        raise UserError(
            "Slurm's commands are not found: start Snakemake where they are, or load them first (module load slurm)"
        )
    answers, text = ask("scontrol", "show", "config")
    if not answers:
        raise UserError(f"Slurm does not answer: {text.splitlines()[-1]}")
    kind = re.search(r"^SelectType\s*= select/(linear|cons_res)$", text, re.M)
    if kind is None or not gpus:
        return ""
    return f"{kind[0]}: this Slurm takes no --gpus; docs/cluster.md has another way to ask for them"


def may_pass(problem: str) -> bool:
    """Whether a refused submission may be repeated as it is: a limit of submitted jobs, an outage."""
    return bool(FULL.search(problem) or AWAY.search(problem))


def said(problem: str) -> str:
    """What sbatch said, in a line. `problem`: its messages, or those of the plugin, which quote its whole call, too."""
    lines = re.findall(r"sbatch: error: ([^'\n]*)", problem) or problem.strip().splitlines()[:1]
    return "; ".join(line.removeprefix("Batch job submission failed: ").strip() for line in lines)


def refusal(problem: str) -> tuple[str, bool]:
    """A sentence about a refused submission, and whether it will be refused again."""
    words = said(problem)
    for pattern, remedy in REFUSALS:
        if re.search(pattern, words):
            return f"Slurm refuses the job: {words}: {remedy}. ", True
    return f"Slurm refuses the job: {words}. ", False


def waiting(job: str, reason: str) -> tuple[str, bool]:
    """A sentence about a pending job, and whether somebody must intervene."""
    stays, words = next((s, w) for pattern, s, w in WAITS if re.search(pattern, reason, re.I))
    return f"Slurm does not start job {job} ({reason}): {words.format(job=job)}", stays


def starved(state: str, log: Path) -> bool:
    """Whether a job that ended in `state` was killed for its memory; without cgroups only its log says so."""
    return state == "OUT_OF_MEMORY" or bool(STARVED.search(_end(log)))


def denied(log: Path) -> str:
    """Why a job got no step, in which its program would start, in srun's words; empty if it got one."""
    found = DENIED.search(_end(log))
    return found[1] if found else ""


def _end(log: Path) -> str:
    try:
        return log.read_text(errors="replace")[-100_000:]
    except OSError:
        return ""
