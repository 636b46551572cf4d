"""A lock of the operating system that says whether a controlling Snakemake process is alive in this folder.

Snakemake's own locks are files, which a killed process leaves behind. This lock ends with its process: every controller
shares it as long as it lives, and only one that can take it exclusively removes stale locks. On some file systems it
binds one machine only, so the locks of another machine's controller stay until `snakemake --unlock`; those of a
controller that was a Slurm job, until Slurm says that the job has ended.
"""

import fcntl
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import TextIO

from trm.errors import UserError
from trm.slurm.commands import has_ended
from trm.slurm.requeue import job_id

LOCK, LOCKS = Path(".snakemake/trm-run.lock"), Path(".snakemake/locks")


def join() -> TextIO | None:
    """Share the lock until this process ends; the caller keeps the handle. If no other controller is alive, stale
    locks of Snakemake are removed. None: there are no such locks on this file system, so Snakemake's own decide."""
    try:
        LOCK.parent.mkdir(exist_ok=True)
        handle = LOCK.open("a+")
    except OSError:
        return None  # Snakemake says what is wrong with the folder
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if problem := _foreign(handle):
            print(problem, file=sys.stderr, flush=True)  # Snakemake refuses to start
            return handle
        _remove_stale_locks()
    except BlockingIOError:
        pass
    except OSError:
        handle.close()
        return None
    _share(handle)
    return handle


def wait_and_join() -> TextIO:
    """Wait until no other controller is alive in this folder, then share the lock. UserError: the folder cannot be
    written, or a controller on another machine may be alive."""
    try:
        LOCK.parent.mkdir(exist_ok=True)
        handle = LOCK.open("a+")
    except OSError as error:
        raise UserError(f"{Path.cwd()}: {error.strerror}; run in a folder that can be written") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = " on ".join(_owner(handle)[:2]) or "unknown"
        print(
            f"another run (process {owner}) is active in this folder: waiting for its end",
            file=sys.stderr,
            flush=True,
        )
        fcntl.flock(handle, fcntl.LOCK_EX)
    if problem := _foreign(handle):
        handle.close()
        raise UserError(problem)
    _remove_stale_locks()
    _share(handle)
    return handle


def _share(handle: TextIO) -> None:
    fcntl.flock(handle, fcntl.LOCK_SH)
    handle.seek(0)
    handle.truncate()
    words = [str(os.getpid()), socket.gethostname()]
    if "SLURMD_NODENAME" in os.environ:  # on a node of a job: Slurm ends this process with it
        words += [job_id(), os.environ.get("SLURM_CLUSTER_NAME", "")]
    handle.write(" ".join(words))
    handle.flush()


def _owner(handle: TextIO) -> list[str]:
    """Process id of the newest controller, and, if it ran on another machine, that and its Slurm job with cluster."""
    handle.seek(0)
    owner = handle.read().split()
    return owner[:1] if owner[1:2] == [socket.gethostname()] else owner


def _foreign(handle: TextIO) -> str:
    """A message if a controller on another machine, which may be alive, has left locks; else empty."""
    owner = _owner(handle)
    if len(owner) < 2 or not (LOCKS.is_dir() and any(LOCKS.iterdir())):
        return ""
    process, host, number, cluster = [*owner, "", ""][:4]
    # a job that Slurm has started again on another node is this one
    again = (number, cluster) == (job_id(), os.environ.get("SLURM_CLUSTER_NAME", ""))
    if number and (again or has_ended(cluster, number)):
        return ""
    job = f" (Slurm job {number})" if number else ""
    return (
        f"process {process} on {host}{job} may still run in this folder, and its locks are in {LOCKS}: wait for it, "
        "or, if it has ended, run `snakemake --unlock`"
    )


def _remove_stale_locks() -> None:
    shutil.rmtree(LOCKS, ignore_errors=True)
