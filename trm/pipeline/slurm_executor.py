"""The Slurm plugin's executor with a safer watch over its jobs.

A job is looked up by squeue, then by sacct, and, where neither knows it, by its files. Jobs bear the name of the study
and of what they make, so that a controller that starts again finds those of a killed one. What upstream could take
over is in docs/upstream/.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import snakemake_executor_plugin_slurm as plugin
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from trm.pipeline.project import Project

FAILED = ("BOOT_FAIL", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "TIMEOUT")
RETURNING = ("NODE_FAIL", "PREEMPTED")  # Slurm may put such a job back into the queue
ALIVE = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "REQUEUED", "STOPPED")
FULL = re.compile(r"MaxSubmitJob")
AWAY = re.compile(r"Unable to contact slurm|Socket timed out|temporarily unable|Connection refused", re.I)
ARRAYS = Path(".snakemake/slurm_arrays")
"""One file for each job array: what each of its tasks makes."""
CLOCK_SKEW = 60.0
LONGER, LONGEST = 1.25, 120.0
"""Pauses between looks at jobs grow by this factor, up to so many seconds: so long an end may go unseen."""


def name_of(job: Any) -> str:
    """What a job makes, the same in every controller: rule and wildcards, or a group and a digest of its files."""
    if job.is_group():
        outputs = sorted(map(str, job.output))
        return f"{job.name}.{sha256(' '.join(outputs).encode()).hexdigest()[:8]}"
    return ".".join((job.name, *map(str, job.wildcards or ()))).replace("/", "_")


def use_executor(project: Project, snakemake: Any) -> None:
    """Have `--executor slurm` use this executor.

    Args:
        project: the study, whose name is the first part of every job's name.
        snakemake: Snakemake's `workflow` object of the Snakefile.
    """
    settings = project.settings
    Executor.study, Executor.max_minutes = project.study.name, settings.max_runtime
    Executor.lost_minutes = settings.lost_minutes
    ExecutorPluginRegistry().plugins["slurm"].executor = Executor
    # The profile's limit makes the runs of a group share GPUs; Snakemake would also cut the request of a larger run.
    if snakemake.resource_scopes.is_local("gpu") and "gpu" in snakemake.global_resources:
        workers = max((run.config.placement.workers for run in project.runs.values()), default=1)
        snakemake.global_resources["gpu"] = settings.gpus * max(workers, settings.workers)


class Executor(plugin.Executor):  # type: ignore[misc]
    """Submits jobs as the plugin does; `use_executor` sets the class attributes."""

    study = ""
    max_minutes = 0
    lost_minutes = 10.0
    logger: Any
    next_seconds_between_status_checks: float

    def __post_init__(self, test_mode: bool = False) -> None:
        self._submission, self._closing = threading.local(), threading.Event()
        self._earlier: dict[str, str] | None = None
        self._earlier_lock = threading.Lock()
        self._away_since: float | None = None
        self._warned: set[str] = set()
        super().__post_init__(test_mode)

    # submission

    @property
    def run_uuid(self) -> str:
        """Name of the job that this thread submits; the plugin expects one for all."""
        return getattr(self._submission, "name", self._uuid)

    @run_uuid.setter
    def run_uuid(self, value: str) -> None:
        self._uuid = value

    def run_job(self, job: Any) -> None:
        """Submit a job, or take over that of an earlier controller. Waits while Slurm takes no jobs."""
        self._guarded(self._run_job, [job])

    def run_array_jobs(self, jobs: list[Any]) -> None:
        """The same for arrays of jobs."""
        self._guarded(self._run_arrays, jobs)

    def _guarded(self, submit: Callable[[list[Any]], None], jobs: list[Any]) -> None:
        """Submit in a thread whose errors nobody else would see."""
        try:
            submit(jobs)
        except Exception as error:
            self.logger.error(f"A submission failed: {error}", exc_info=True)
            for job in jobs:
                super()._report_job_error_threadsafe(SubmittedJobInfo(job), "see the error above. ")

    def _run_job(self, jobs: list[Any]) -> None:
        (job,) = jobs
        if job.is_group() and self.max_minutes:
            job._resources["runtime"] = min(job.resources["runtime"], self.max_minutes)
        self._submission.name = f"{self.study}.{name_of(job)}"
        while not self._adopt(job):
            self._submission.refused = ""
            super().run_job(job)
            if not self._submission.refused:
                return
            self._wait_for_slurm(self._submission.refused)

    def _run_arrays(self, jobs: list[Any]) -> None:
        jobs = [job for job in jobs if not self._adopt(job)]
        for alike in _alike(jobs):
            for first in range(0, len(alike), self.max_array_size):
                self._run_array(alike[first : first + self.max_array_size])

    def _run_array(self, jobs: list[Any]) -> None:
        """Submit an array; two smaller ones where the limit of jobs is reached. The plugin's own arrays check the
        outputs of the first task in all tasks."""
        problem = self._submit_array(jobs)
        while _may_pass(problem) and not self._closing.is_set():
            if len(jobs) > 1 and FULL.search(problem):
                half = len(jobs) // 2
                self._run_array(jobs[:half])
                self._run_array(jobs[half:])
                return
            self._wait_for_slurm(problem)
            jobs = [job for job in jobs if not self._adopt(job)]
            problem = self._submit_array(jobs) if jobs else ""
        for job in jobs if problem else ():
            sentence = f"sbatch failed: {_last_line(problem)}. "
            super()._report_job_error_threadsafe(SubmittedJobInfo(job), sentence)

    def _submit_array(self, jobs: list[Any]) -> str:
        """Submit one array, of which each task runs its own job; returns a problem or an empty text."""
        first, settings = jobs[0], self.workflow.executor_settings
        logs = Path(self.slurm_logdir) / f"rule_{first.name}"
        logs.mkdir(parents=True, exist_ok=True)
        plugin.validate_slurm_extra(first)
        parameters = {
            "run_uuid": f"{self.study}.{first.name}",
            "slurm_logfile": logs / "%A_%a.log",
            "comment_str": f"rule_{first.name}",
            "account": next(self.get_account_arg(first)),
            "partition": self.get_partition_arg(first),
            "workdir": self.workflow.workdir_init,
        }
        call = plugin.get_submit_command(
            first, parameters, settings=settings, failed_nodes=self._failed_nodes
        )
        call += f"{plugin.set_gres_string(first)} --array=1-{len(jobs)} /dev/stdin"
        tasks = "".join(f"{task}) {self.format_job_exec(job)};;\n" for task, job in enumerate(jobs, 1))
        script = f"#!/bin/sh\ncase $SLURM_ARRAY_TASK_ID in\n{tasks}esac\n"
        done = subprocess.run(call, shell=True, input=script, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr
        number = plugin.validate_or_get_slurm_job_id(done.stdout.strip().split(";")[0], done.stdout)
        self.logger.info(f"Slurm job {number} is an array of {len(jobs)} jobs of rule {first.name}.")
        ARRAYS.mkdir(parents=True, exist_ok=True)
        names = {str(task): name_of(job) for task, job in enumerate(jobs, 1)}
        (ARRAYS / f"{number}.json").write_text(json.dumps(names))
        for task, job in enumerate(jobs, 1):
            aux = {"slurm_logfile": self._logfile(job, f"{number}_{task}")}
            info = SubmittedJobInfo(job, external_jobid=f"{number}_{task}", aux=aux)
            self._report_job_submission_threadsafe(info)
        return ""

    def _report_job_error_threadsafe(self, job_info: Any, msg: str) -> None:
        if _may_pass(msg) and not self._closing.is_set():
            self._submission.refused = msg
        else:
            super()._report_job_error_threadsafe(job_info, msg)

    def _report_job_submission_threadsafe(self, job_info: Any) -> None:
        job_info.aux.setdefault("since", time.time())
        super()._report_job_submission_threadsafe(job_info)

    def _wait_for_slurm(self, problem: str) -> None:
        self._once("submit", "Slurm takes no more jobs for now (%s): waiting", _last_line(problem))
        self._earlier = None  # an answer may have been lost: the job may be in the queue
        self._closing.wait(self.workflow.executor_settings.init_seconds_before_status_checks)

    def cancel(self) -> None:
        """Cancel all jobs, also those that wait to be submitted."""
        self._closing.set()
        super().cancel()

    # jobs of an earlier controller

    def _adopt(self, job: Any) -> bool:
        """Take over a live job of the same name and folder; True also if there is nothing to submit any more."""
        while not self._closing.is_set():
            with self._earlier_lock:
                if self._earlier is None:
                    self._earlier = self._find_earlier()
                if self._earlier is not None:
                    found = self._earlier.pop(name_of(job), None)
                    break
            self._once("submit", "Slurm does not answer: jobs wait to be submitted")
            self._closing.wait(self.workflow.executor_settings.init_seconds_before_status_checks)
        else:
            super()._report_job_error_threadsafe(SubmittedJobInfo(job), "not submitted: the workflow ends")
            return True
        if found is None:
            return False
        self.logger.info(f"Job {job.jobid} is Slurm job {found} already, from an earlier start.")
        aux = {"slurm_logfile": self._logfile(job, found), "since": 0.0}
        self._report_job_submission_threadsafe(SubmittedJobInfo(job, external_jobid=found, aux=aux))
        return True

    def _find_earlier(self) -> dict[str, str] | None:
        """What each live job of this study and folder makes -> its id; None if Slurm does not answer."""
        text = _output(["squeue", "--me", "--array", "--noheader", "--format=%i|%T|%Z|%j"])
        if text is None:
            return None
        found: dict[str, str] = {}
        for line in text.splitlines():
            job, state, folder, name = line.split("|", 3)
            if not name.startswith(f"{self.study}.") or state not in ALIVE:
                continue
            if os.path.realpath(folder) != os.path.realpath(self.workflow.workdir_init):
                continue
            array, _, task = job.partition("_")
            made: str | None = name.removeprefix(f"{self.study}.")
            if task:
                path = ARRAYS / f"{array}.json"
                made = json.loads(path.read_text()).get(task) if path.exists() else None
            if made is None:
                self.logger.warning(f"Slurm job {job} is of an unknown run of this study: cancelled")
                _output(["scancel", job])
            else:
                found[made] = job
        return found

    def _logfile(self, job: Any, number: str) -> Path:
        kind = f"group_{job.name}" if job.is_group() else f"rule_{job.name}"
        wildcards = "" if "_" in number else plugin.get_job_wildcards(job)
        return Path(self.slurm_logdir) / kind / wildcards / f"{number}.log"

    # watch

    async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncGenerator[Any, None]:
        """Report jobs that have ended and yield the others."""
        first = self.workflow.executor_settings.init_seconds_before_status_checks
        ended = 0
        states = await self._states([info.external_jobid for info in active_jobs]) if active_jobs else {}
        for info in active_jobs:
            state = (states or {}).get(info.external_jobid, "")
            if state or (states is None and not self._away_too_long()):
                info.aux.pop("unknown", None)
            if self._settle(info, state, states is not None):
                ended += 1
            else:
                yield info
        longer = min(LONGER * self.next_seconds_between_status_checks, LONGEST)
        self.next_seconds_between_status_checks = first if ended or not active_jobs else longer

    async def _states(self, jobs: Sequence[str]) -> dict[str, str] | None:
        """State of each job that Slurm knows; None if it does not answer."""
        clusters = (
            [f"--clusters={','.join(self._submitted_job_clusters)}"] if self._submitted_job_clusters else []
        )
        queue = ["squeue", "--me", "--array", "--states=all", "--noheader", "--format=%i|%T|%r", *clusters]
        async with self.status_rate_limiter:
            text = await asyncio.to_thread(_output, queue)
        if text is None:
            self._away_since = self._away_since or time.time()
            self._once("away", "Slurm does not answer: jobs go on, and are looked up again")
            return None
        if self._away_since:
            self.logger.info("Slurm answers again.")
            self._away_since = None
            self._warned.discard("away")
        states = _table(text)
        for job, reason in re.findall(r"^(\S+?)\|PENDING\|(.*held.*)$", text, re.M):
            if job in jobs:
                self._once(job, "Slurm holds job %s (%s): `scontrol release` or `scancel` it", job, reason)
        if missing := [job for job in jobs if job not in states]:
            records = ["sacct", "-X", "--noheader", "--parsable2", "--format=JobID,State", *clusters]
            text = await asyncio.to_thread(_output, [*records, "--jobs", ",".join(missing)])
            # a job that has left the queue does not run, whatever the records say
            known = _table(text or "")
            states |= {job: known[job] for job in missing if known.get(job) not in (None, *ALIVE)}
        return states

    def _away_too_long(self) -> bool:
        return self._away_since is not None and time.time() - self._away_since > 60 * self.lost_minutes

    def _settle(self, info: Any, state: str, answered: bool) -> bool:
        """Report a job that has ended; whether it has."""
        number = info.external_jobid
        if state == "COMPLETED":
            self._succeed(info)
        elif state == "CANCELLED":
            info.job.attempt = info.job.restart_times + 1  # whoever cancels a job does not want it back
            self._fail(info, f"Slurm job {number} was cancelled. Repeat the command to resume it")
        elif state in FAILED:
            more = ": give it more time (max_runtime)" if state == "TIMEOUT" else ""
            self._fail(info, f"Slurm job {number} ended as {state}{more}")
        elif state in RETURNING:
            if self.workflow.executor_settings.requeue and self._silent_minutes(info) < self.lost_minutes:
                return False
            self._fail(info, f"Slurm job {number} ended as {state} and was not put back into the queue")
        elif state or not (answered or self._away_too_long()):
            return False
        elif _made(info):
            self._succeed(info)
        elif answered and self._silent_minutes(info) > self.lost_minutes:
            self._fail(
                info,
                f"Slurm does not know job {number}, and its log says nothing for {self.lost_minutes:g} minutes",
            )
        else:
            return False
        return True

    def _silent_minutes(self, info: Any) -> float:
        """Minutes since the job wrote to its log, or since Slurm was first seen not to run it."""
        times: list[float] = [info.aux.setdefault("unknown", time.time())]
        times += [t for path in info.job.log or () if (t := _modified(path)) is not None]
        return (time.time() - max(times)) / 60

    def _succeed(self, info: Any) -> None:
        self.report_job_success(info)
        if not self.workflow.executor_settings.keep_successful_logs:
            Path(info.aux["slurm_logfile"]).unlink(missing_ok=True)

    def _fail(self, info: Any, sentence: str) -> None:
        self.report_job_error(info, msg=sentence + ". ", aux_logs=[str(info.aux["slurm_logfile"])])

    def _once(self, key: str, sentence: str, *values: object) -> None:
        if key not in self._warned:
            self._warned.add(key)
            self.logger.warning(sentence % values)


def _may_pass(problem: str) -> bool:
    return bool(FULL.search(problem) or AWAY.search(problem))


def _alike(jobs: list[Any]) -> list[list[Any]]:
    """Jobs by GPUs and threads. The plugin takes an array's request from its first job: that gets the most time and
    memory of all."""
    found: dict[tuple[Any, ...], list[Any]] = {}
    for job in jobs:
        found.setdefault((job.resources.get("gpu"), job.threads), []).append(job)
    for group in found.values():
        for name in ("runtime", "mem_mb"):
            if values := [job.resources.get(name) for job in group if job.resources.get(name)]:
                setattr(group[0].resources, name, max(values))
    return list(found.values())


def _made(info: Any) -> bool:
    """Whether all outputs of a job were written since it was submitted."""
    times = [_modified(path) for path in info.job.output]
    since = float(info.aux.get("since", 0.0)) - CLOCK_SKEW
    return bool(times) and all(written is not None and written >= since for written in times)


def _modified(path: object) -> float | None:
    try:
        return os.path.getmtime(str(path))
    except OSError:
        return None


def _table(text: str) -> dict[str, str]:
    """State by id, of lines `id|STATE by whom|...`."""
    rows = (line.split("|") for line in text.splitlines())
    return {row[0]: row[1].split()[0] for row in rows if len(row) > 1 and row[1].strip()}


def _output(words: Iterable[str]) -> str | None:
    """What a command prints; None if it fails."""
    try:
        done = subprocess.run([*words], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout


def _last_line(text: str) -> str:
    found = re.findall(r"sbatch: error: ([^'\n]*)", text)
    return str(found[-1]) if found else text.strip().splitlines()[0]
