"""The Slurm plugin's executor with a safer watch over its jobs.

A job is looked up by squeue, then by sacct, and, where neither knows it, by its files. Jobs are named after the study
and their outputs, so that a restarted controller finds the jobs of a killed one. docs/upstream/ has what upstream could
take over.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import snakemake_executor_plugin_slurm as plugin
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from trm.io import write_json
from trm.pipeline.project import Project
from trm.pipeline.slurm import AWAY, query_environment

FAILED = ("BOOT_FAIL", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "TIMEOUT")
RETURNING = ("NODE_FAIL", "PREEMPTED")  # Slurm may put such a job back into the queue
ENDED = ("COMPLETED", "CANCELLED", *FAILED, *RETURNING)
"""In all other states, such as SIGNALING, Slurm still has the job."""
FULL = re.compile(r"(Max|Grp)SubmitJob")
STUCK = re.compile(
    r"held|PerJob|MaxMemPerLimit|Partition(Time|Node)Limit|BadConstraints|Invalid|NotAllowed|NeverSatisfied",
    re.I,
)
"""Reasons for which a pending job will not start until somebody intervenes."""
ARRAYS = Path(".snakemake/slurm_arrays")
"""One file for each job array, with the outputs of each task. The array's name ends with the name of the file."""
CLOCK_SKEW = 60.0
LONGER, LONGEST = 1.25, 120.0
"""The pause between polls grows by this factor up to this many seconds, until a job starts or ends: the end of a job
may go unnoticed for that long."""
UNLIKE = ("runtime", "mem_mb", "mem_mib", "disk_mb", "disk_mib")
"""Resources in which the tasks of an array may differ."""


def name_of(job: Any) -> str:
    """Identity of a job's outputs, the same in every controller: rule and wildcards, or a group and a digest of its
    files."""
    if job.is_group():
        return f"{job.name}.{_digest(sorted(map(str, job.output)))}"
    return ".".join((job.name, *map(str, job.wildcards or ()))).replace("/", "_")


def use_executor(project: Project) -> None:
    """Have `--executor slurm` use this executor for a study, whose name is the first part of every job's name."""
    settings = project.settings
    Executor.study, Executor.max_minutes = project.study.name, settings.max_runtime
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
        self._submission, self._closing = threading.local(), threading.Event()
        self._live: dict[str, Any] = {}
        self._earlier: dict[str, str] | None = None
        self._earlier_lock = threading.Lock()
        self._away_since: float | None = None
        self._said: set[str] = set()
        super().__init__(workflow, logger)

    # submission, in threads of their own

    @property
    def run_uuid(self) -> str:
        """Name of the job that this thread submits; the plugin expects one for all."""
        return getattr(self._submission, "name", self._uuid)

    @run_uuid.setter
    def run_uuid(self, value: str) -> None:
        self._uuid = value

    def run_jobs(self, jobs: list[Any]) -> None:
        """Submit jobs. The plugin keeps those of an array back until all that are ready come, which `--jobs` may
        prevent for ever."""
        arrays: dict[str, list[Any]] = {}
        for job in jobs:
            if not job.is_group() and self.array_jobs & {"all", job.rule.name}:
                arrays.setdefault(job.rule.name, []).append(job)
            else:
                self._submit_job(job)
        for alike in arrays.values():
            if len(alike) > 1:
                self._submit_array_jobs(alike)
            else:
                self._submit_job(alike[0])

    def run_job(self, job: Any) -> None:
        """Submit a job, or take over that of an earlier controller. Waits while Slurm takes no jobs."""
        with self._watched():
            if job.is_group() and self.max_minutes:
                job._resources["runtime"] = min(job.resources["runtime"], self.max_minutes)
            self._submission.name = f"{self.study}.{name_of(job)}"
            while not self._adopt(job):
                self._submission.refused = ""
                super().run_job(job)  # reports its errors
                if not self._submission.refused:
                    return
                self._wait_for_slurm(self._submission.refused)

    def run_array_jobs(self, jobs: list[Any]) -> None:
        """The same for arrays."""
        with self._watched():
            self._run_arrays(jobs)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """End the workflow on an error in a submission thread, where it would go unnoticed."""
        try:
            yield
        except Exception as error:
            self.workflow.scheduler.executor_error_callback(error)

    def _run_arrays(self, jobs: list[Any]) -> None:
        """Submit arrays; one that exceeds the limit on jobs is halved."""
        size = self.max_array_size
        arrays = deque(
            alike[first : first + size] for alike in _alike(jobs) for first in range(0, len(alike), size)
        )
        while arrays:
            if not (tasks := [job for job in arrays.popleft() if not self._adopt(job)]):
                continue
            try:
                problem = self._submit_array(tasks)
            except Exception as error:  # of the plugin: an unknown account, an option that it refuses
                self.logger.error("An array was not submitted", exc_info=True)
                problem = f"{type(error).__name__}: {error}"
            if not problem:
                continue
            if FULL.search(problem) and len(tasks) > 1:
                half = len(tasks) // 2
                arrays.extendleft((tasks[half:], tasks[:half]))
            elif _may_pass(problem):
                self._wait_for_slurm(problem)
                arrays.appendleft(tasks)
            else:
                for job in tasks:
                    sentence = f"sbatch failed: {_last_line(problem)}. "
                    super()._report_job_error_threadsafe(SubmittedJobInfo(job), sentence)

    def _submit_array(self, jobs: list[Any]) -> str:
        """Submit one array; returns a problem or an empty text. In the plugin's own arrays all tasks check the outputs
        of the first."""
        first, settings = jobs[0], self.workflow.executor_settings
        logs = Path(self.slurm_logdir) / f"rule_{first.name}"
        logs.mkdir(parents=True, exist_ok=True)
        plugin.validate_slurm_extra(first)
        names = [name_of(job) for job in jobs]
        digest = _digest(names)
        ARRAYS.mkdir(parents=True, exist_ok=True)
        write_json(ARRAYS / f"{digest}.json", names)
        parameters = {
            "run_uuid": f"{self.study}.{first.name}.{digest}",
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
            return done.stderr.strip() or f"exit code {done.returncode}"
        number = plugin.validate_or_get_slurm_job_id(done.stdout.strip().split(";")[0], done.stdout)
        self.logger.info(f"Slurm job {number} is an array of {len(jobs)} jobs of rule {first.name}.")
        for task, job in enumerate(jobs, 1):
            self._hand_over(job, f"{number}_{task}")
        return ""

    def _hand_over(self, job: Any, number: str, **aux: float) -> None:
        """Watch the Slurm job `number` as `job`."""
        info = SubmittedJobInfo(
            job, external_jobid=number, aux={"slurm_logfile": self._logfile(job, number), **aux}
        )
        self._report_job_submission_threadsafe(info)

    def _report_job_error_threadsafe(self, job_info: Any, msg: str) -> None:
        if _may_pass(msg):
            self._submission.refused = msg
        else:
            super()._report_job_error_threadsafe(job_info, msg)

    def _report_job_submission_threadsafe(self, job_info: Any) -> None:
        job_info.aux.setdefault("since", time.time())
        self._live[job_info.external_jobid] = job_info
        if self._closing.is_set():  # `cancel` may have looked before
            self.cancel_jobs([job_info])
        super()._report_job_submission_threadsafe(job_info)

    def _wait_for_slurm(self, problem: str) -> None:
        self._once(f"Slurm takes no more jobs for now ({_last_line(problem)}): waiting")
        self._pause()
        self._earlier = None  # an answer may have been lost: the job may be in the queue

    def _pause(self) -> None:
        self._closing.wait(self.workflow.executor_settings.init_seconds_before_status_checks)

    # the end

    def cancel(self) -> None:
        """Cancel all jobs, also those that wait to be submitted or are looked at."""
        self._close()
        with self.lock:
            self.active_jobs = list(self._live.values())
        super().cancel()

    def cancel_jobs(self, active_jobs: list[Any]) -> None:
        """Cancel jobs."""
        try:
            super().cancel_jobs(active_jobs)
        except WorkflowError as error:
            self.logger.error(f"{error}. `squeue --me` shows the jobs that are left")

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
        name, fresh = name_of(job), False
        while not self._closing.is_set():
            with self._earlier_lock:
                # a job may have ended since the queue was read; a retry's first job may live though sbatch failed
                if self._earlier is None or (not fresh and (job.attempt > 1 or name in self._earlier)):
                    self._earlier, fresh = self._find_earlier(), True
                if self._earlier is not None:
                    if number := self._earlier.pop(name, ""):
                        self.logger.info(
                            f"Job {job.jobid} is Slurm job {number} already, from an earlier start."
                        )
                        self._hand_over(job, number, since=0.0)
                    return bool(number)
            self._once("Slurm does not answer: jobs wait to be submitted")
            self._pause()
        super()._report_job_error_threadsafe(SubmittedJobInfo(job), "not submitted: the workflow ends. ")
        return True

    def _find_earlier(self) -> dict[str, str] | None:
        """Outputs of each live job of this study and folder -> its id; None if Slurm does not answer."""
        text = _output(["squeue", "--me", "--array", "--noheader", "--format=%i|%T|%Z|%j"])
        if text is None:
            return None
        found: dict[str, str] = {}
        for line in text.splitlines():
            number, state, folder, name = line.split("|", 3)
            made = name.removeprefix(f"{self.study}.")
            if made == name or state in ENDED:
                continue
            if os.path.realpath(folder) != os.path.realpath(self.workflow.workdir_init):
                continue
            if task := number.partition("_")[2]:
                path = ARRAYS / f"{made.rpartition('.')[2]}.json"
                made = json.loads(path.read_text())[int(task) - 1] if path.exists() else ""
            if made:
                found[made] = number
            else:
                self.logger.warning(f"Slurm job {number} is of an unknown run of this study: cancelled")
                _output(["scancel", number])
        return found

    def _logfile(self, job: Any, number: str) -> Path:
        kind = f"group_{job.name}" if job.is_group() else f"rule_{job.name}"
        wildcards = "" if "_" in number else plugin.get_job_wildcards(job)
        return Path(self.slurm_logdir) / kind / wildcards / f"{number}.log"

    # watch

    async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncGenerator[Any, None]:
        """Report jobs that have ended and yield the others."""
        states = await self._states([info.external_jobid for info in active_jobs]) if active_jobs else {}
        changed = not active_jobs
        for info in active_jobs:
            state = (states or {}).get(info.external_jobid, "")
            changed |= info.aux.get("state", state) != state
            info.aux["state"] = state
            if (state and state not in ENDED) or (states is None and not self._away_too_long()):
                info.aux.pop("unknown", None)
            problem = self._problem(info, state, states is not None)
            if problem is None:
                yield info
                continue
            changed = True
            self._live.pop(info.external_jobid, None)
            log = Path(info.aux["slurm_logfile"])
            if problem:
                self.report_job_error(info, msg=f"{problem}. ", aux_logs=[str(log)])
            else:
                self.report_job_success(info)
                if not self.workflow.executor_settings.keep_successful_logs:
                    log.unlink(missing_ok=True)
        first = self.workflow.executor_settings.init_seconds_before_status_checks
        longer = min(LONGER * self.next_seconds_between_status_checks, LONGEST)
        self.next_seconds_between_status_checks = first if changed else longer

    async def _states(self, jobs: Sequence[str]) -> dict[str, str] | None:
        """State of each job that Slurm knows; None if it does not answer."""
        clusters = (
            [f"--clusters={','.join(self._submitted_job_clusters)}"] if self._submitted_job_clusters else []
        )
        queue = ["squeue", "--me", "--array", "--states=all", "--noheader", "--format=%i|%T|%r", *clusters]
        async with self.status_rate_limiter:
            text = await asyncio.to_thread(_output, queue)
        away = "Slurm does not answer: jobs go on, and are looked up again"
        if text is None:
            self._away_since = self._away_since or time.time()
            self._once(away)
            return None
        if self._away_since:
            self.logger.info("Slurm answers again.")
            self._away_since = None
            self._said.discard(away)
        states = _table(text)
        for job, reason in re.findall(r"^(\S+?)\|PENDING\|(.*)$", text, re.M):
            if job in jobs and STUCK.search(reason):
                self._once(
                    f"Slurm does not start job {job} ({reason}): change it (`scontrol update`), "
                    "release it (`scontrol release`) or cancel it (`scancel`)"
                )
        if missing := [job for job in jobs if job not in states]:
            records = ["sacct", "-X", "--noheader", "--parsable2", "--format=JobID,State", *clusters]
            text = await asyncio.to_thread(_output, [*records, "--jobs", ",".join(missing)])
            # a job that has left the queue does not run, whatever the records say
            known = _table(text or "")
            states |= {job: known[job] for job in missing if known.get(job) in ENDED}
        return states

    def _away_too_long(self) -> bool:
        return self._away_since is not None and time.time() - self._away_since > 60 * self.lost_minutes

    def _problem(self, info: Any, state: str, answered: bool) -> str | None:
        """How a job failed, an empty text if it has succeeded, None if it goes on."""
        number = info.external_jobid
        if state == "COMPLETED":
            return ""
        if state == "CANCELLED":
            info.job.attempt = info.job.restart_times + 1  # no retry: somebody has cancelled it
            return f"Slurm job {number} was cancelled. Repeat the command to resume it"
        if state in FAILED:
            more = ": give it more time (max_runtime)" if state == "TIMEOUT" else ""
            return f"Slurm job {number} ended as {state}{more}"
        if state in RETURNING:
            if self.workflow.executor_settings.requeue and self._silent_minutes(info) < self.lost_minutes:
                return None
            return f"Slurm job {number} ended as {state} and was not put back into the queue"
        if state or not (answered or self._away_too_long()):
            return None
        if _made(info):
            return ""
        if answered and self._silent_minutes(info) > self.lost_minutes:
            return f"Slurm does not know job {number}, and its log says nothing for {self.lost_minutes:g} minutes"
        return None

    def _silent_minutes(self, info: Any) -> float:
        """Minutes since the job wrote to its log, or since Slurm was first seen not to run it."""
        times: list[float] = [info.aux.setdefault("unknown", time.time())]
        times += [t for path in info.job.log or () if (t := _modified(path)) is not None]
        return (time.time() - max(times)) / 60

    def _once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self.logger.warning(sentence)


def _may_pass(problem: str) -> bool:
    return bool(FULL.search(problem) or AWAY.search(problem))


def _alike(jobs: list[Any]) -> list[list[Any]]:
    """Jobs by what they ask for. The plugin takes an array's request from its first job: that gets the most time and
    memory of all."""
    found: dict[tuple[Any, ...], list[Any]] = {}
    for job in jobs:
        asked = {name: str(value) for name, value in job.resources.items() if name not in UNLIKE}
        found.setdefault((job.threads, *sorted(asked.items())), []).append(job)
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


def _digest(names: Iterable[str]) -> str:
    return sha256(" ".join(names).encode()).hexdigest()[:8]


def _table(text: str) -> dict[str, str]:
    """State by id, of lines `id|STATE by whom|...`."""
    rows = (line.split("|") for line in text.splitlines())
    return {row[0]: row[1].split()[0] for row in rows if len(row) > 1 and row[1].strip()}


def _output(words: Iterable[str]) -> str | None:
    """What a command prints; None if it fails."""
    try:
        done = subprocess.run(
            [*words], capture_output=True, text=True, timeout=60, check=False, env=query_environment()
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout


def _last_line(text: str) -> str:
    found = re.findall(r"sbatch: error: ([^'\n]*)", text)
    return str(found[-1]) if found else text.strip().splitlines()[0]
