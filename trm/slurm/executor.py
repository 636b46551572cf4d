"""The Slurm plugin's executor with a safer watch over its jobs.

A job is looked up by squeue, then by sacct, and, where neither knows it, by its files. Jobs are named after the study
and their outputs, so that a restarted controller finds the jobs of a killed one. docs/upstream/ has what upstream could
take over.
"""

import asyncio
import json
import os
import re
import shlex
import threading
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import snakemake_executor_plugin_slurm as plugin
from snakemake_interface_common.exceptions import ApiError, WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from trm.errors import UserError
from trm.io import write_text
from trm.pipeline.project import Project
from trm.slurm.causes import FULL, ORDINARY, denied, may_pass, refusal, said, starved, unfit, waiting
from trm.slurm.contract import check_contract
from trm.slurm.jobs import alike, digest, give_back, give_up, made, modified, name_of, set_resource
from trm.slurm.requeue import AWAY, ask, location

FAILED = ("BOOT_FAIL", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "TIMEOUT")
RETURNING = ("NODE_FAIL", "PREEMPTED")  # Slurm may put such a job back into the queue
ENDED = ("COMPLETED", "CANCELLED", *FAILED, *RETURNING)
"""In all other states, such as SIGNALING, Slurm still has the job."""
ARRAYS = Path(".snakemake/slurm_arrays")
"""One script for each job array; its first line lists the outputs of each task. The array's name ends with the name
of the file."""
LONGER, LONGEST = 1.25, 120.0
"""The pause between polls grows by this factor up to this many seconds, until a job starts or ends: the end of a job
may go unnoticed for that long."""


def use_executor(project: Project) -> None:
    """Have `--executor slurm` use this executor for a study, whose name is the first part of every job's name."""
    settings = project.settings
    Executor.study, Executor.max_minutes = project.study.file.name, settings.max_runtime
    Executor.lost_minutes, Executor.gpus = settings.lost_minutes, settings.gpus
    ExecutorPluginRegistry().plugins["slurm"].executor = Executor


class Executor(plugin.Executor):  # type: ignore[misc]
    """Submits jobs as the plugin does; `use_executor` sets the class attributes."""

    study = ""
    max_minutes = 0
    lost_minutes = 10.0
    gpus = 1
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
        self._pending: dict[tuple[str, str], float] = {}
        self._memory: dict[str, int] = {}
        self._denied: set[str] = set()
        _leave_job()
        try:
            check_contract(plugin)
            problem = unfit(self.gpus)
        except UserError as error:
            raise ApiError(str(error)) from None  # printed without a place in the code
        # The plugin keeps the jobs of an array back until all that are ready come, which `--jobs` may prevent for ever.
        plugin.pending_jobs_for_rule = lambda dag, rule_name: 0
        super().__init__(workflow, logger)
        self._fallback_partition = ""  # sbatch knows its default; the plugin would ask
        if problem:
            logger.warning(problem)

    # submission, in threads of their own

    @property
    def run_uuid(self) -> str:
        """Name of the job that this thread submits; the plugin expects one for all."""
        return getattr(self._submission, "name", self._uuid)

    @run_uuid.setter
    def run_uuid(self, value: str) -> None:
        self._uuid = value

    def run_job(self, job: Any) -> None:
        """Submit a job, or take over that of an earlier controller. Waits while Slurm takes no jobs."""
        with self._watched():
            if job.is_group() and self.max_minutes:
                set_resource(job, "runtime", min(job.resources["runtime"], self.max_minutes))
            self._enlarge(job)
            self._run([job])

    def run_array_jobs(self, jobs: list[Any]) -> None:
        """The same for arrays."""
        with self._watched():
            for job in jobs:
                self._enlarge(job)
            for tasks in alike(jobs):
                for first in range(0, len(tasks), self.max_array_size):
                    self._run(tasks[first : first + self.max_array_size])

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """End the workflow on an error in a submission thread, where it would go unnoticed."""
        try:
            yield
        except Exception as error:
            self.workflow.scheduler.executor_error_callback(error)

    def _enlarge(self, job: Any) -> None:
        """Give a job that ran out of memory more."""
        if memory := self._memory.get(name_of(job)):
            set_resource(job, "mem_mb", memory)

    def _run(self, jobs: list[Any]) -> None:
        """Submit a job, or several as an array; one that exceeds the limit on jobs is halved."""
        while jobs := [job for job in jobs if not self._adopt(job)]:
            if not (problem := self._submit(jobs)):
                return
            if FULL.search(problem) and len(jobs) > 1:
                half = len(jobs) // 2
                self._run(jobs[:half])
                jobs = jobs[half:]
            elif may_pass(problem):
                self._wait_for_slurm(problem)
            else:
                return self._refuse(jobs, problem)

    def _submit(self, jobs: list[Any]) -> str:
        """Submit one job, or an array; returns a problem or an empty text."""
        now = self._submission
        now.problem, now.jobs, now.options, now.script = "", jobs, "", ""
        now.name = f"{self.study}.{name_of(jobs[0])}"
        if len(jobs) > 1:
            self._make_array(jobs)
        super().run_job(jobs[0])
        return str(now.problem)

    def _make_array(self, jobs: list[Any]) -> None:
        """Write the command of each task. In the plugin's own arrays all tasks check the outputs of the first."""
        names = [name_of(job) for job in jobs]
        array, now, rule = digest(names), self._submission, jobs[0].name
        tasks = "".join(f"{task}) {self.format_job_exec(job)};;\n" for task, job in enumerate(jobs, 1))
        ARRAYS.mkdir(parents=True, exist_ok=True)
        path = (ARRAYS / f"{array}.sh").resolve()
        write_text(path, f"# {json.dumps(names)}\ncase $SLURM_ARRAY_TASK_ID in\n{tasks}esac\n")
        now.name, now.script = f"{self.study}.{rule}.{array}", f"sh {shlex.quote(str(path))}"
        logs = Path(self.slurm_logdir) / f"rule_{rule}" / "%A_%a.log"
        now.options = f" --array=1-{len(jobs)} --output={shlex.quote(str(logs))}"

    def format_job_exec(self, job: Any) -> str:
        """The command of a job, or of the array that is submitted."""
        return str(getattr(self._submission, "script", "") or super().format_job_exec(job))

    def get_account_arg(self, job: Any) -> Iterator[str]:
        """The options for a job's account and array. The plugin would ask about accounts and guess; sbatch knows its
        default."""
        account = job.resources.get("slurm_account")
        yield (f" -A {shlex.quote(str(account))}" if account else "") + self._submission.options

    def _report_job_submission_threadsafe(self, job_info: Any) -> None:
        number, jobs = job_info.external_jobid, self._submission.jobs
        if len(jobs) == 1:
            return self._watch(jobs[0], number)
        self.logger.info(f"Slurm job {number} is an array of {len(jobs)} jobs of rule {jobs[0].name}.")
        for task, job in enumerate(jobs, 1):
            self._watch(job, f"{number}_{task}")

    def _watch(self, job: Any, number: str, since: float | None = None) -> None:
        """Watch the Slurm job `number`, submitted at `since` (default: now), as `job`."""
        since = time.time() if since is None else since
        info = SubmittedJobInfo(
            job, external_jobid=number, aux={"slurm_logfile": self._logfile(job, number), "since": since}
        )
        self._live[number] = info
        if self._closing.is_set():  # `cancel` may have looked before
            self.cancel_jobs([info])
        super()._report_job_submission_threadsafe(info)

    def _report_job_error_threadsafe(self, job_info: Any, msg: str) -> None:
        self._submission.problem = msg

    def _refuse(self, jobs: list[Any], problem: str) -> None:
        sentence, final = refusal(problem)
        for job in jobs:
            if final:
                give_up(job)
            super()._report_job_error_threadsafe(SubmittedJobInfo(job), sentence)

    def _wait_for_slurm(self, problem: str) -> None:
        self._once(f"Slurm takes no more jobs for now ({said(problem)}): waiting")
        answers = not AWAY.search(problem)
        self._pause()
        while not answers and not self._ends():
            answers = _output(["squeue", "--me", "--noheader"]) is not None
            self._pause()  # a Slurm that hung may answer this before it takes the job of an sbatch that has given up
        self._earlier = None  # the job may be in the queue

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
        while not self._ends():
            with self._earlier_lock:
                # a job may have ended since the queue was read; a retry's first job may live though sbatch failed
                if self._earlier is None or (not fresh and (job.attempt > 1 or name in self._earlier)):
                    self._earlier, fresh = self._find_earlier(), True
                if self._earlier is not None:
                    if number := self._earlier.pop(name, ""):
                        self.logger.info(
                            f"Job {job.jobid} is Slurm job {number} already: not submitted again."
                        )
                        self._watch(job, number, since=0.0)
                    return bool(number)
            self._once("Slurm does not answer: jobs wait to be submitted")
            self._pause()
        give_up(job)
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
                path = ARRAYS / f"{made.rpartition('.')[2]}.sh"
                made = (
                    json.loads(path.read_text().splitlines()[0][2:])[int(task) - 1] if path.exists() else ""
                )
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
            if job in jobs and reason not in ORDINARY:
                self._explain(job, reason)
        if missing := [job for job in jobs if job not in states]:
            records = ["sacct", "-X", "--noheader", "--parsable2", "--format=JobID,State", *clusters]
            text = await asyncio.to_thread(_output, [*records, "--jobs", ",".join(missing)])
            # A job that has left the queue does not run, whatever the records say; one cancelled by nobody was lost:
            # slurmctld came back without its state.
            known = _table(re.sub(r"\|CANCELLED$", "|", text or "", flags=re.MULTILINE))
            states |= {job: known[job] for job in missing if known.get(job) in ENDED}
        return states

    def _explain(self, job: str, reason: str) -> None:
        """Say once why a job does not start: soon if somebody must intervene, else after `lost_minutes`."""
        sentence, stays = waiting(job, reason)
        since = self._pending.setdefault((job, reason), time.time())
        if stays or time.time() - since > 60 * self.lost_minutes:
            self._once(sentence, reason if not stays else "")

    def _away_too_long(self) -> bool:
        return self._away_since is not None and time.time() - self._away_since > 60 * self.lost_minutes

    def _problem(self, info: Any, state: str, answered: bool) -> str | None:
        """How a job failed, an empty text if it has succeeded, None if it goes on."""
        number = info.external_jobid
        if state == "COMPLETED":
            return ""
        if state == "CANCELLED":
            give_up(info.job)
            return f"Slurm job {number} was cancelled. Repeat the command to resume it"
        if state in FAILED:
            return self._failed(info, state)
        if state in RETURNING:
            if self.workflow.executor_settings.requeue and self._silent_minutes(info) < self.lost_minutes:
                return None
            return f"Slurm job {number} ended as {state} and was not put back into the queue"
        if state or not (answered or self._away_too_long()):
            return None
        if made(info):
            return ""
        if answered and self._silent_minutes(info) > self.lost_minutes:
            return f"Slurm does not know job {number}, and its log says nothing for {self.lost_minutes:g} minutes"
        return None

    def _failed(self, info: Any, state: str) -> str:
        """Why a job failed. If Slurm did not start its program, it uses up no retry, once."""
        number, log, name = info.external_jobid, Path(info.aux["slurm_logfile"]), name_of(info.job)
        if starved(state, log):
            return self._starved(info)
        if (why := denied(log)) and name not in self._denied:
            self._denied.add(name)
            give_back(info.job)
            return f"Slurm did not start the program of job {number} ({why}): it is submitted again"
        more = ": give it more time (max_runtime)" if state == "TIMEOUT" else ""
        return f"Slurm job {number} ended as {state}{more}"

    def _starved(self, info: Any) -> str:
        """How a job ran out of memory. It gets another attempt with twice as much, and no third one."""
        job, name = info.job, name_of(info.job)
        memory = job.resources.get("mem_mb")
        sentence = f"Slurm job {info.external_jobid} ran out of its {memory} MB of memory"
        if name in self._memory or job.attempt > job.restart_times:
            give_up(job)
            rule = "RULE" if job.is_group() else job.name
            return f"{sentence}: give it more (--set-resources {rule}:mem_mb={2 * memory})"
        self._memory[name] = 2 * memory
        return f"{sentence}: its next attempt gets {2 * memory} MB"

    def _silent_minutes(self, info: Any) -> float:
        """Minutes since the job wrote to its log, or since Slurm was first seen not to run it."""
        times: list[float] = [info.aux.setdefault("unknown", time.time())]
        times += [t for path in info.job.log or () if (t := modified(path)) is not None]
        return (time.time() - max(times)) / 60

    def _once(self, sentence: str, about: str = "") -> None:
        if (about or sentence) not in self._said:
            self._said.add(about or sentence)
            self.logger.warning(sentence)


def _leave_job() -> None:
    """Forget the job in which Snakemake itself runs. The plugin would forget where Slurm is, too."""
    for name in [name for name in os.environ if name.startswith("SLURM_") and name not in location()]:
        del os.environ[name]


def _table(text: str) -> dict[str, str]:
    """State by id, of lines `id|STATE by whom|...`."""
    rows = (line.split("|") for line in text.splitlines())
    return {row[0]: row[1].split()[0] for row in rows if len(row) > 1 and row[1].strip()}


def _output(words: Iterable[str]) -> str | None:
    """What a command prints; None if it fails."""
    succeeded, text = ask(*words)
    return text if succeeded else None
