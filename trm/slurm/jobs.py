"""Snakemake's jobs as the Slurm executor sees them: names, requests, outputs."""

import os
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

CLOCK_SKEW = 60.0


def name_of(job: Any) -> str:
    """Identity of a job's outputs, the same in every controller: rule and wildcards, or a group and a digest of its
    files."""
    if job.is_group():
        return f"{job.name}.{digest(sorted(map(str, job.output)))}"
    return ".".join((job.name, *map(str, job.wildcards or ()))).replace("/", "_")


def clusters_of(job: Any) -> tuple[str, ...]:
    """Clusters to which sbatch may give a job; empty text: the default one."""
    asked = (job.resources.get(name) for name in ("cluster", "clusters", "slurm_cluster"))
    theirs = (os.environ.get(name) for name in ("SBATCH_CLUSTERS", "SLURM_CLUSTERS"))
    found = next(filter(None, (*asked, *theirs)), "")
    return tuple(name.strip() for name in str(found).split(","))


def spread(job: Any) -> str:
    """Options of sbatch for a job of several nodes: equal shares. From `--gpus` alone Slurm may take three GPUs of one
    node and one of another, on which no step can start."""
    nodes, gpus = job.resources.get("nodes") or 1, job.resources.get("gpu") or 0
    if nodes < 2:
        return ""
    model = f"{model}:" if (model := job.resources.get("gpu_model")) else ""
    return " --ntasks-per-node=1" + (f" --gpus-per-node={model}{gpus // nodes}" if gpus else "")


def give_up(job: Any) -> None:
    """Have Snakemake not try a job again."""
    job.attempt = job.restart_times + 1


def made(info: Any) -> bool:
    """Whether all outputs of a job were written since it was submitted."""
    times = [modified(path) for path in info.job.output]
    since = float(info.aux.get("since", 0.0)) - CLOCK_SKEW
    return bool(times) and all(written is not None and written >= since for written in times)


def modified(path: object) -> float | None:
    try:
        return os.path.getmtime(str(path))
    except OSError:
        return None


def digest(names: Iterable[str]) -> str:
    return sha256(" ".join(names).encode()).hexdigest()[:8]
