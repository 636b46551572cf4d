"""Reproduces the faults of snakemake-executor-plugin-slurm 2.8.0 and of its job step 0.6.1. Needs no Slurm.

python docs/upstream/slurm.py     # a line for each fault that it finds; nothing with the patches slurm-*.patch
"""

import asyncio
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import snakemake_executor_plugin_slurm as plugin
import snakemake_executor_plugin_slurm_jobstep as jobstep
from snakemake_executor_plugin_slurm import job_status_query as query
from snakemake_interface_common.exceptions import WorkflowError
from throttler import Throttler

QUIET = logging.getLogger("quiet")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False


class Resources(dict):
    """A job's resources."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


class Executor(plugin.Executor):
    """An executor that notes what it submits and reports."""

    def __init__(self) -> None:
        settings = {"init_seconds_before_status_checks": 0, "status_attempts": 1, "status_command": "squeue"}
        settings |= {"array_limit": 1000, "delete_logfiles_older_than": 0, "keep_successful_logs": True}
        settings |= dict.fromkeys(("requeue", "no_requeue", "qos", "reservation", "pass_command_as_script"))
        settings |= dict.fromkeys(
            ("exclude_failed_nodes", "jobname_prefix", "array_jobs", "logdir", "partition_config")
        )
        self.workflow = SimpleNamespace(
            executor_settings=SimpleNamespace(**settings),
            dag=SimpleNamespace(ready_jobs=[Job() for _ in range(3)]),
            workdir_init=".",
        )
        self.logger, self.run_uuid, self.wait = QUIET, "study", True
        self.status_rate_limiter = Throttler(rate_limit=100, period=1)
        self._status_query_failures = self._status_query_calls = 0
        self._next_seconds_between_status_checks = 1
        self._main_event_loop, self._failed_nodes, self._partitions = None, set(), None
        self._fallback_account_arg = self._fallback_partition = ""
        self._submitted_job_clusters: set[str] = set()
        self.array_jobs, self.max_array_size, self.slurm_logdir = {"train"}, 100, Path("logs")
        self.submitted: list[Any] = []
        self.failed: list[str] = []

    def _submit_job(self, job: Any) -> None:
        self.submitted.append(job)

    def _submit_array_jobs(self, jobs: list[Any]) -> None:
        self.submitted += jobs

    def report_job_submission(self, info: Any, register_job: bool = True) -> None:
        """Note a job that sbatch has taken."""
        self.submitted.append(info.job)

    def report_job_error(self, info: Any, msg: str = "", **rest: Any) -> None:
        """Note a job that has failed."""
        self.failed.append(msg)

    def format_job_exec(self, job: Any) -> str:
        """The command of a job."""
        return "true"


class Job:
    """A job of rule train."""

    name, wildcards, threads, jobid = "train", (), 1, 1
    rule, resources = SimpleNamespace(name="train"), Resources()

    def is_group(self) -> bool:
        """No group."""
        return False


def command(name: str, script: str) -> None:
    """Put a stand-in for one of Slurm's commands into the current folder, which is in PATH."""
    Path(name).write_text(f"#!/bin/sh\n{script}\n")
    Path(name).chmod(0o755)


def look(number: str) -> list[Any]:
    """Whether a job is still watched after a look at it, and what was reported."""
    executor, info = Executor(), SimpleNamespace(external_jobid=number, aux={}, job=Job())

    async def watched() -> list[Any]:
        return [each async for each in executor.check_active_jobs([info])]

    return [*asyncio.run(watched()), *executor.failed]


def states(text: str) -> dict[str, str]:
    """States as the plugin reads them from a command."""
    return asyncio.run(query.query_job_status(text, QUIET))[0] or {}


def faults() -> Iterator[str]:
    """Yield a sentence for each fault."""
    command("squeue", "exit 1")
    command("sacct", "exit 1")
    command("scontrol", "echo MinJobAge = 300 sec")
    if not look("1"):
        yield "jobs are forgotten while Slurm does not answer"
    executor = Executor()
    executor.run_jobs([Job(), Job()])  # --jobs 2
    if not executor.submitted:
        yield "an array waits for jobs that never come"
    command("squeue", 'case "$*" in *--array*) echo "12_2|PENDING";; *) echo "12_[1-2]|PENDING";; esac')
    command("sacct", 'case "$*" in *JobIdRaw*) echo "13|COMPLETED";; *) echo "12_2|COMPLETED";; esac')
    asked = (query.query_job_status_squeue("study"), query.query_job_status_sacct("study"))
    if not all("12_2" in states(each) for each in asked):
        yield "the states of an array's tasks are not found"
    command("sacct", 'echo "12|CANCELLED by 1000"')
    if states("sacct") != {"12": "CANCELLED"}:
        yield "a cancelled job is never reported"
    os.environ |= {"SLURM_CONF": "kept", "SLURM_JOB_ID": "7"}
    plugin.delete_slurm_environment()
    if os.environ.pop("SLURM_CONF", "") != "kept":
        yield "SLURM_CONF is deleted from Snakemake's own job"
    command(
        "sbatch",
        "if [ -e full ]; then echo 5; else touch full; echo QOSMaxSubmitJobPerUserLimit >&2; exit 1; fi",
    )
    executor = Executor()
    executor.run_job(Job())
    if executor.failed:
        yield "a job beyond the limit of submitted jobs fails"
    if not step_knows_slurm():
        yield "srun is not told SLURM_CONF"
    command("scontrol", "echo MaxArraySize = 1")
    try:
        Executor().__post_init__()
    except WorkflowError:
        yield "nothing starts where arrays are switched off"
    path, os.environ["PATH"] = os.environ["PATH"], os.getcwd()
    try:
        query.is_query_tool_available("sacct")
    except FileNotFoundError:
        yield "the plugin cannot be imported where `which` is not installed"
    os.environ["PATH"] = path


def step_knows_slurm() -> bool:
    """Whether the job step's srun gets SLURM_CONF."""
    command("srun", 'test "$SLURM_CONF" = kept')
    os.environ |= {"SLURM_CONF": "kept"}
    step, ends = object.__new__(jobstep.Executor), []
    step.workflow = SimpleNamespace(executor_settings=SimpleNamespace(pass_command_as_script=False))
    step.logger, step.gpu_job, step.job_array_task = QUIET, None, False
    step.format_job_exec = lambda job: "true"
    step.report_job_submission = lambda info: None
    step.report_job_success, step.report_job_error = (
        lambda info: ends.append(True),
        lambda info: ends.append(False),
    )
    step.run_job(Job())
    return ends == [True]


def main() -> None:
    """Print one line for each fault."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
        for fault in faults():
            print(fault)


if __name__ == "__main__":
    main()
