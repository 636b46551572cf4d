"""The Slurm plugin's executor with a safer watch over its jobs.

A job is looked up by squeue, then by sacct, and, where neither knows it, by its files. Jobs are named after the study
and their outputs, so that a restarted controller finds the jobs of a killed one. docs/upstream/ has what upstream could
take over.
"""

import asyncio
import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import snakemake_executor_plugin_slurm as plugin
from snakemake_interface_common.exceptions import ApiError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from trm.io import tail
from trm.pipeline.project import Project
from trm.slurm import commands
from trm.slurm.commands import AWAY, ENDED, PASSING, Row, SlurmJob, message_of
from trm.slurm.jobs import CLOCK_SKEW, clusters_of, give_up, made, modified, name_of, spread
from trm.slurm.requeue import AGAIN

RETURNING = ("NODE_FAIL", "PREEMPTED")
"""States of a job that Slurm may put back into the queue."""
ORDINARY = ("None", "Priority", "Resources", "BeginTime", "Dependency", "Cleaning")
"""Reasons of a pending job that pass by themselves."""
DENIED = re.compile(r"^srun: error: (Unable to (?:create step|confirm allocation) for job .*)", re.M)
"""What srun writes into a job's log when slurmctld gives it no step: it does not answer, or was started seconds ago and
has given the job no GPU of a node that had not registered yet (22.05)."""
SRUN = re.compile(r"^(srun: error: (?!.*\btasks? ).*)", re.M)
"""srun's own errors, other than the program's exit code."""
MORE = {
    "TIMEOUT": "give it more time (--set-resources RULE:runtime=MINUTES; a group: --config max_runtime=MINUTES)",
    "OUT_OF_MEMORY": "give it more memory (--set-resources RULE:mem_mb=MB, or its mem_mb_per_cpu if that is set)",
}
LONGER, LONGEST = 1.25, 120.0
"""The pause between polls grows by this factor up to this many seconds, until a job starts or ends: the end of a job
may go unnoticed for that long."""


def use_executor(project: Project) -> None:
    """Have `--executor slurm` use this executor for a study, whose name is the first part of every job's name."""
    settings = project.settings
    Executor.study, Executor.max_minutes = project.study.file.name, settings.max_runtime
    Executor.lost_minutes = settings.lost_minutes
    ExecutorPluginRegistry().plugins["slurm"].executor = Executor


class Executor(plugin.Executor):  # type: ignore[misc]
    """Submits jobs as the plugin does; `use_executor` sets the class attributes."""

    study = ""
    max_minutes = 0
    lost_minutes = 10.0
    logger: Any
    next_seconds_between_status_checks: float

    def __init__(self, workflow: Any, logger: Any):
        # before the plugin starts the thread that watches
        self._closing = threading.Event()
        self._live: dict[SlurmJob, Any] = {}
        self._earlier: dict[str, dict[str, SlurmJob]] = {}
        self._earlier_lock = threading.Lock()
        self._away: dict[str, float] = {}
        self._told: set[str] = set()
        self._denied: set[str] = set()
        if "SLURM_JOB_ID" in os.environ:
            commands.forget_job()
        # jobs inherit it: `which`, if a node has none
        os.environ["PATH"] += f":{Path(__file__).with_name('bin')}"
        answers, text = commands.ask("squeue", "--me", "--noheader")
        if not answers:  # ApiError: printed without a place in the code
            last = text.rpartition("\n")[2]
            raise ApiError(
                f"Slurm does not answer ({last}): load its commands (module load slurm), or wait until it is up"
            )
        if workflow.executor_settings.array_jobs:
            raise ApiError(
                "--slurm-array-jobs is refused, as the plugin loses jobs of arrays: use --groups (docs/cluster.md)"
            )
        # it refuses to start where Slurm has none, with or without arrays
        plugin.get_max_array_size = lambda: 1000
        super().__init__(workflow, logger)
        self._fallback_partition = ""  # sbatch knows its default; the plugin would ask

    # submission, in threads of their own

    def run_job(self, job: Any) -> None:
        """Submit a job, or take over that of an earlier controller. Waits while Slurm takes no jobs."""
        try:
            if job.is_group() and self.max_minutes:
                job._resources["runtime"] = min(job.resources["runtime"], self.max_minutes)
            while not self._adopt(job) and (problem := self._submit(job)):
                if AWAY.search(problem) or PASSING.search(problem):
                    self._wait_for_slurm(problem)
                else:
                    return self._refuse(
                        job,
                        f"Slurm refuses the job ({message_of(problem)}): change what it asks for (docs/cluster.md). ",
                    )
        except Exception as error:  # it would go unnoticed in this thread
            self.workflow.scheduler.executor_error_callback(error)

    def _submit(self, job: Any) -> str:
        """Submit a job; returns a problem or an empty text."""
        settings, name = self.workflow.executor_settings, f"{self.study}.{name_of(job)}"
        log = self._logfile(job, "%j")
        plugin.validate_slurm_extra(job)
        log.parent.mkdir(parents=True, exist_ok=True)
        parameters = {"run_uuid": name, "slurm_logfile": log, "workdir": self.workflow.workdir_init}
        # sbatch knows the default account; the plugin would ask about accounts and guess
        account = job.resources.get("slurm_account")
        parameters["account"] = f"-A {shlex.quote(str(account))}" if account else ""
        parameters |= {
            "comment_str": log.parts[len(self.slurm_logdir.parts)],
            "partition": self.get_partition_arg(job),
        }
        call = plugin.get_submit_command(job, parameters, settings=settings, failed_nodes=self._failed_nodes)
        call += plugin.set_gres_string(job) + spread(job)
        command = self.format_job_exec(job)
        script = f"#!/bin/sh\n{command}\n" if settings.pass_command_as_script else None
        call += "" if script else f" --wrap={shlex.quote(command)}"
        done = subprocess.run(call, shell=True, capture_output=True, text=True, input=script, check=False)
        found = re.findall(r"^(\d+)(?:;(\S+))?$", done.stdout, re.M)
        if done.returncode or not found:
            return done.stderr or f"sbatch printed no number of a job: {done.stdout}"
        number, cluster = found[-1]
        self._watch(job, SlurmJob(cluster, number, name), time.time())
        return ""

    def _refuse(self, job: Any, sentence: str) -> None:
        give_up(job)
        self._report_job_error_threadsafe(SubmittedJobInfo(job), sentence)

    def _logfile(self, job: Any, number: str) -> Path:
        kind = f"group_{job.name}" if job.is_group() else f"rule_{job.name}"
        return Path(self.slurm_logdir, kind, plugin.get_job_wildcards(job), f"{number}.log")

    def _watch(self, job: Any, slurm: SlurmJob, since: float) -> None:
        """Watch the Slurm job, submitted at `since`, as `job`."""
        log = self._logfile(job, slurm.number)
        aux = {"slurm": slurm, "slurm_logfile": log, "since": since}
        info = self._live[slurm] = SubmittedJobInfo(job, external_jobid=slurm.number, aux=aux)
        self.logger.info(f"Job {job.jobid} is Slurm job {slurm.number} (log: {log}).")
        if self._closing.is_set():  # `cancel` may have looked before
            self.cancel_jobs([info])
        self._report_job_submission_threadsafe(info)

    def _wait_for_slurm(self, problem: str) -> None:
        self._once(f"Slurm takes no more jobs for now ({message_of(problem)}): waiting")
        answers = not AWAY.search(problem)
        self._pause()
        while not answers and not self._ends():
            answers = commands.queue("") is not None
            self._pause()  # a Slurm that hung may answer this before it takes the job of an sbatch that has given up
        self._earlier.clear()  # the job may be in the queue

    def _pause(self) -> None:
        end = time.monotonic() + self.workflow.executor_settings.init_seconds_before_status_checks
        while not self._ends() and (left := end - time.monotonic()) > 0:
            self._closing.wait(min(left, 1))

    def _ends(self) -> bool:
        """Whether no job is to be submitted any more. After SIGTERM Snakemake waits for its jobs, these included."""
        return self._closing.is_set() or bool(self.workflow.scheduler._user_kill)

    # the end

    def cancel(self) -> None:
        """Cancel all jobs, also those that wait to be submitted or are looked at."""
        self._close()
        with self.lock:
            self.active_jobs = list(self._live.values())
        super().cancel()

    def cancel_jobs(self, active_jobs: list[Any]) -> None:
        """Cancel jobs, and none of the same number that is not of this study and folder."""
        jobs = sorted(info.aux["slurm"] for info in active_jobs)
        for cluster, group in groupby(jobs, lambda job: job.cluster):
            known = self._queue(cluster)
            live = [job.number for job in group if known and job in known and known[job].state not in ENDED]
            problem = "Slurm does not answer" if known is None else ""
            if problem := problem or (commands.cancel_all(cluster, live) if live else ""):
                self.logger.error(
                    f"{problem}: jobs may go on; `squeue --all --me{_there(cluster)}` lists them, `scancel` ends them"
                )

    def shutdown(self) -> None:
        """End the threads at once."""
        self._close()
        super().shutdown()

    def _close(self) -> None:
        with self.lock:
            self.wait = False
        self._closing.set()

    async def sleep(self) -> None:
        """Pause between two looks, or until the end."""
        await asyncio.to_thread(self._closing.wait, self.next_seconds_between_status_checks)

    # jobs of an earlier controller

    def _adopt(self, job: Any) -> bool:
        """Take over a live job of the same name and folder; True also if there is nothing to submit any more."""
        name, clusters, fresh = name_of(job), clusters_of(job), False
        while not self._ends():
            with self._earlier_lock:
                known = self._earlier.get(",".join(clusters))
                # a job may have ended since the queue was read; a retry's first job may live though sbatch failed
                if known is None or (not fresh and (job.attempt > 1 or name in known)):
                    known, fresh = self._find_earlier(clusters), True
                if known is not None:
                    self._earlier[",".join(clusters)] = known
                    if found := known.pop(name, None):
                        self.logger.info(f"Job {job.jobid} is with Slurm already: it is not submitted again.")
                        self._watch(job, found, 0.0)
                    return bool(found)
            self._once("Slurm does not answer: jobs wait to be submitted")
            self._pause()
        self._refuse(job, "not submitted: the workflow ends. ")
        return True

    def _find_earlier(self, clusters: Iterable[str]) -> dict[str, SlurmJob] | None:
        """Outputs of each live job of this study and folder -> the job; None if Slurm does not answer."""
        found: dict[str, SlurmJob] = {}
        for cluster in clusters:
            if (known := self._queue(cluster)) is None:
                return None
            live = [job for job, row in known.items() if row.state not in ENDED]
            found |= {job.name.removeprefix(f"{self.study}."): job for job in live}
        return found

    def _own(self, cluster: str, rows: Iterable[Row]) -> dict[SlurmJob, Row]:
        """Those of this study and folder."""
        here = os.path.realpath(self.workflow.workdir_init)
        return {
            SlurmJob(cluster, row.number, row.name): row
            for row in rows
            if row.name.startswith(f"{self.study}.") and os.path.realpath(row.folder) == here
        }

    def _queue(self, cluster: str) -> dict[SlurmJob, Row] | None:
        """Jobs of this study and folder that a cluster has; None: no answer."""
        rows = commands.queue(cluster)
        return None if rows is None else self._own(cluster, rows)

    # watch

    async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncGenerator[Any, None]:
        """Report jobs that have ended and yield the others."""
        states = await self._states([info.aux["slurm"] for info in active_jobs])
        changed = not active_jobs
        for info in active_jobs:
            job, state = info.aux["slurm"], states.get(info.aux["slurm"], "")
            changed |= info.aux.setdefault("state", state) != state
            info.aux["state"] = state
            seen = info.aux["seen"] = state or info.aux.get("seen", "")
            if (state and state not in ENDED) or self._is_away(job.cluster):
                info.aux.pop("unknown", None)
            if passing := self._passing(info, state):
                self.logger.warning(f"Slurm job {job.number} {passing}: it is submitted again")
                self._earlier.clear()
                self._job_submission_executor.submit(self.run_job, info.job)
                problem = None
            elif (problem := self._problem(info, state, seen)) is None:
                yield info
                continue
            changed = True
            self._live.pop(job, None)
            log = Path(info.aux["slurm_logfile"])
            if problem:
                self.report_job_error(info, msg=f"{problem}. ", aux_logs=[str(log)])
            elif problem == "":
                self.report_job_success(info)
                if not self.workflow.executor_settings.keep_successful_logs:
                    log.unlink(missing_ok=True)
        first = self.workflow.executor_settings.init_seconds_before_status_checks
        longer = min(LONGER * self.next_seconds_between_status_checks, LONGEST)
        self.next_seconds_between_status_checks = first if changed else longer

    async def _states(self, jobs: Sequence[SlurmJob]) -> dict[SlurmJob, str]:
        """State of each job that Slurm knows; `_away` has the clusters that do not answer."""
        found: dict[SlurmJob, str] = {}
        for cluster, group in groupby(sorted(jobs), lambda job: job.cluster):
            asked = list(group)
            async with self.status_rate_limiter:
                known = await asyncio.to_thread(self._queue, cluster)
            away = "Slurm does not answer: jobs go on, and are looked up again"
            if known is None:
                self._away.setdefault(cluster, time.time())
                self._once(away)
                continue
            if self._away.pop(cluster, None):
                self.logger.info("Slurm answers again.")
                self._told.discard(away)
            for job in asked:
                if job in known and known[job].state == "PENDING" and known[job].reason not in ORDINARY:
                    reason = known[job].reason
                    more = f"`scontrol{_there(cluster)} show job {job.number}` says more"
                    self._once(f"Slurm does not start job {job.number}: {reason} ({more})", reason)
            if missing := [job.number for job in asked if job not in known]:
                known |= self._own(cluster, await asyncio.to_thread(commands.records, cluster, missing))
            found |= {job: known[job].state for job in asked if job in known}
        return found

    def _is_away(self, cluster: str) -> bool:
        """Whether a cluster has not answered for a time in which no job is given up."""
        return time.time() - self._away.get(cluster, 0.0) < 60 * self.lost_minutes

    def _passing(self, info: Any, state: str) -> str:
        """What ended a job through no fault of its own, so that another one does what is left; else empty."""
        ended = state in ENDED if state else info.aux["slurm"].cluster not in self._away
        if self._ends() or not ended or state in ("COMPLETED", "CANCELLED", *RETURNING):
            return ""
        again, name = AGAIN / info.external_jobid, name_of(info.job)
        if again.exists() and again.stat().st_mtime > info.aux["since"] - CLOCK_SKEW:
            again.unlink()
            return "stopped before its time limit and may not be requeued"
        if name not in self._denied and (
            found := DENIED.search(tail(Path(info.aux["slurm_logfile"]), 100_000))
        ):
            self._denied.add(name)
            return f"got no program started ({found[1]})"
        return ""

    def _problem(self, info: Any, state: str, seen: str) -> str | None:
        """How a job failed, an empty text if it has succeeded, None if it goes on. `seen`: its last known state."""
        job = info.aux["slurm"]
        answered = job.cluster not in self._away
        if state == "COMPLETED":
            return ""
        if state == "CANCELLED":
            give_up(info.job)
            return f"Slurm job {job.number} was cancelled. Repeat the command to resume it"
        if state in RETURNING or (seen in RETURNING and not state and answered):
            if state and self.workflow.executor_settings.requeue and self._silent(info) < self.lost_minutes:
                return None
            return f"Slurm job {job.number} ended as {state or seen} and was not put back into the queue"
        if state in ENDED:
            errors = SRUN.findall(tail(Path(info.aux["slurm_logfile"]), 100_000))
            # the first is the cause, and the last often says it in words
            more = MORE.get(state) or "; ".join(dict.fromkeys((*errors[:1], *errors[-1:])))
            return f"Slurm job {job.number} ended as {state}" + (f": {more}" if more else "")
        if state or self._is_away(job.cluster):
            return None
        if made(info):
            return ""
        if answered and self._silent(info) > self.lost_minutes:
            commands.cancel(job)
            minutes = f"{self.lost_minutes:g} minutes"
            return f"Slurm does not know job {job.number}, and its log says nothing for {minutes}"
        return None

    def _silent(self, info: Any) -> float:
        """Minutes since the job wrote to its log, or since Slurm was first seen not to run it."""
        times: list[float] = [info.aux.setdefault("unknown", time.time())]
        times += [t for path in info.job.log or () if (t := modified(path)) is not None]
        return (time.time() - max(times)) / 60

    def _once(self, sentence: str, about: str = "") -> None:
        if (about or sentence) not in self._told:
            self._told.add(about or sentence)
            self.logger.warning(sentence)


def _there(cluster: str) -> str:
    return f" -M {cluster}" if cluster else ""
