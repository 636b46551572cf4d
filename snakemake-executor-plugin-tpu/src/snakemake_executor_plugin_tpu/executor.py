"""The executor that Snakemake calls. An event loop in its own thread drives the jobs."""

import asyncio
import atexit
import contextlib
import csv
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.utils import encode_target_jobs_cli_args, format_cli_arg

from .allocation import hosts_wanted
from .control import pack
from .driver import Driver, end
from .errors import COMMAND
from .guarding import may_exist
from .health import Health
from .identity import check_files, fingerprint_of, is_forced, label_of, members, slot_of, why_outdated
from .job import JobRequest, JobRun, Outcome
from .pool import Pool
from .slice import Slice

PYTHON = '"$TPU_PYTHON"'
ENTRY = '"$TPU_AGENT/worker/snakemake_job.py"'
LARGEST_SOURCE = 10 << 20
LARGEST_LOCAL_INPUT = 50 << 20
COLUMNS = (
    *("job", "label", "launches", "ok", "submitted", "started", "ended", "reported"),
    *("accelerator_type", "chip_seconds"),
)
COLLECT_SECONDS = 60.0
END_SECONDS = 150.0  # more than the parts of Slice.close take together


@contextlib.contextmanager
def noting_interrupts() -> Iterator[list[int]]:
    """Note each SIGINT and SIGTERM besides raising KeyboardInterrupt, which Snakemake's log handler swallows."""
    noted: list[int] = []

    def note(number: int, _: object) -> None:
        noted.append(number)
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.signal(number, note) for number in numbers}
    try:
        yield noted
    finally:
        for number in numbers:
            signal.signal(number, previous[number])


class Executor(RemoteExecutor):
    next_seconds_between_status_checks = 0.2  # they cost nothing

    def __post_init__(self) -> None:
        """Prepare without touching the pod, which is started for the first job."""
        self.settings = self.workflow.executor_settings
        self.settings.check_pod()
        self.folder = Path(self.workflow.persistence.path).absolute() / "tpu"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.runs: dict[str, JobRun] = {}
        self.futures: dict[str, Future[Outcome]] = {}
        self.stopped: dict[str, Outcome] = {}
        self.cancelled = False
        self._workflow_sources: dict[str, Path] | None = None
        self._sources: dict[frozenset[tuple[str, int, int]], bytes] = {}
        self.left = ""
        """What may cost money after this call: its last line."""
        atexit.register(lambda: self.left and print(self.left, file=sys.stderr))
        self.driver = Driver("tpu-pod")
        self.driver.call(self._begin())

    async def _begin(self) -> None:
        health, slices = Health(self._say), []
        for settings in self.settings.of_slices():
            slice = Slice(settings, self.folder, self._say, health, is_busy=lambda: bool(self.runs))
            slice.cloud.patience = settings.lease or math.inf
            slices.append(slice)
        self.pool = Pool(slices, self._say, health)
        self.pool.runs = self.runs

    def _say(self, sentence: str) -> None:
        self.logger.info(f"{time.strftime('%H:%M:%S')} {sentence}")

    def get_python_executable(self) -> str:
        return PYTHON

    def additional_general_args(self) -> str:
        return "--quiet host progress reason"

    def get_job_args(self, job: Any, **kwargs: Any) -> str:
        """Quote wildcards for a shell: Snakemake quotes for Python, and `$(...)` would be executed."""
        arguments = str(super().get_job_args(job, **kwargs))
        targets = encode_target_jobs_cli_args(job.get_target_spec())
        unneeded = list(self.workflow.dag.get_unneeded_temp_files(job))
        for flag, values in (("--target-jobs", targets), ("--unneeded-temp-files", unneeded)):
            risky = format_cli_arg(flag, values, skip=not values)
            if risky not in arguments:
                raise WorkflowError(
                    f"This Snakemake passes {flag} in an unknown way: install the version that the plugin names. "
                    f"It passes: {arguments[:200]}"
                )
            if risky:
                arguments = arguments.replace(risky, shlex.join([flag, *map(str, values)]), 1)
        return arguments

    def run_job(self, job: Any) -> None:
        # Here, as Snakemake's scheduler has set its own handler by now: SIGTERM is a Ctrl-C of a service manager.
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        slot = slot_of(job)
        info = SubmittedJobInfo(job, external_jobid=slot, aux={"submitted": time.time()})
        try:
            check_files(job)
            request = self._request(job, slot)
            outcome = self.stopped.get(slot)  # Snakemake would retry a job that `stop` has ended
        except (WorkflowError, OSError) as error:
            outcome = Outcome(False, str(error))
        if outcome is None:
            self._start(request)
        else:
            self.futures[slot] = Future()
            self.futures[slot].set_result(outcome)
        # Last, as the polling thread checks submitted jobs at once.
        self.report_job_submission(info)

    def _start(self, request: JobRequest) -> None:
        slot = request.slot
        self.left = self.left or may_exist(self.settings)
        logs = self.folder / "logs" / slot
        self.runs[slot] = JobRun(request, self.pool, logs, self.settings, self._say)
        self.futures[slot] = self.driver.start(self.runs[slot].run())

    def _request(self, job: Any, slot: str) -> JobRequest:
        command = self.format_job_exec(job)
        module = f"{PYTHON} -m snakemake "
        if module not in command:
            raise WorkflowError(
                "This version of Snakemake starts jobs in an unknown way: install the version that the plugin names. "
                f"It starts: {command[:200]}"
            )
        resources, minutes = job.resources, self.settings.stall
        forwarded = {
            name: os.environ[name] for name in self.settings.forward_env.split() if name in os.environ
        }
        return JobRequest(
            slot=slot,
            fingerprint=fingerprint_of(job),
            label=label_of(job),
            runtime=60 * float(resources.get("runtime") or self.settings.runtime_minutes),
            stall=60 * float(resources.get("stall", minutes)),
            like=str(resources.get("tpu_like") or ""),
            reports="stall" in dict(resources.items()),
            hosts=hosts_wanted(resources.get("tpu_hosts"), self.pool.slices[0].hosts),
            command=command.replace(module, f"{PYTHON} {ENTRY} ", 1),
            environment={**forwarded, **self.envvars()},
            sources=self._archive(job),
            outdated=partial(why_outdated, job, is_forced(job, self.workflow.dag_settings)),
        )

    def _archive(self, job: Any) -> bytes:
        """Pack the workflow's sources, tpu-sources and the job's local inputs."""
        if self._workflow_sources is None:
            names = [name for name in self.dag.get_sources() if Path(name).is_file()]
            large = [name for name in names if Path(name).stat().st_size > LARGEST_SOURCE]
            if large:
                self.logger.warning(
                    f"{', '.join(large)}: more than 10 MB, not sent to the pod; make it an input."
                )
            self._workflow_sources = {name: Path(name) for name in names if name not in large}
        files = dict(self._workflow_sources)
        for item in self.settings.sources.split():
            if not Path(item).exists():
                raise WorkflowError(f"tpu-sources names {item}, which does not exist in {os.getcwd()}.")
            found = sorted(Path(item).rglob("*")) if Path(item).is_dir() else [Path(item)]
            sources = [path for path in found if path.is_file() and "__pycache__" not in path.parts]
            files.update({str(path): path for path in sources})
        made_inside = {str(file) for part in members(job) for file in part.output}
        for file in (file for part in members(job) for file in part.input):
            if not file.is_storage and str(file) not in made_inside and Path(file).is_file():
                if Path(file).stat().st_size > LARGEST_LOCAL_INPUT:
                    raise WorkflowError(f"Input {file} is too large to send with a job: put it into storage.")
                files[str(file)] = Path(file)
        for name in files:
            if name.startswith(("/", "..")):
                raise WorkflowError(f"{name} is outside of {os.getcwd()}: it cannot be sent to the pod.")
        key = frozenset((name, path.stat().st_mtime_ns, path.stat().st_size) for name, path in files.items())
        if key not in self._sources:
            self._sources[key] = pack(files)
        return self._sources[key]

    async def check_active_jobs(self, active_jobs: Any) -> Any:
        for info in active_jobs:
            # None: the job is announced before its request is complete.
            future = self.futures.get(info.external_jobid)
            if future is None or not future.done():
                yield info
                continue
            # No exception may end the polling thread: the workflow would end without a message.
            try:
                outcome = future.result()
            except BaseException as error:
                self.logger.debug("the job's driver failed", exc_info=error)
                outcome = Outcome.of_error(error)
            try:
                self._account(info, outcome)
            except OSError as error:
                self.logger.warning(f"{self.folder / 'jobs.csv'} cannot be written: {error}")
            if outcome.ok:
                self.report_job_success(info)
            elif not self.cancelled:
                if outcome.stopped:
                    self.stopped[info.external_jobid] = outcome
                message = f"TPU job {label_of(info.job)}: {outcome.message} "
                self.report_job_error(info, msg=message, aux_logs=[str(path) for path in outcome.logs])

    def _account(self, info: SubmittedJobInfo, outcome: Outcome) -> None:
        path = self.folder / "jobs.csv"
        run = self.runs.get(info.external_jobid)
        times = (info.aux["submitted"], outcome.started, outcome.ended, time.time())
        with open(path, "a", newline="") as file:
            writer = csv.writer(file)
            if not file.tell():
                writer.writerow(COLUMNS)
            row = [info.external_jobid, label_of(info.job), run.launches if run else 0, outcome.ok]
            used = (run.accelerator_type, f"{run.chip_seconds:.1f}") if run else ("", "")
            writer.writerow([*row, *map("{:.3f}".format, times), *used])

    def handle_job_success(self, job: Any) -> None:
        """Note in the bucket that Snakemake knows of a success."""
        if run := self.runs.get(slot_of(job)):
            try:
                self.driver.call(run.collect(), COLLECT_SECONDS)
            except Exception as error:  # then the next call finds the success again
                self.logger.warning(f"The end of {label_of(job)} could not be noted in the bucket: {error}")
        self.runs.pop(slot_of(job), None)

    def handle_job_error(self, job: Any) -> None:
        self.runs.pop(slot_of(job), None)

    def cancel_jobs(self, active_jobs: Any) -> None:
        """Stop everything on the pod after Ctrl-C. After an error of Snakemake, of a local rule, say, jobs go on."""
        if self.driver.ended:
            return
        error = sys.exc_info()[1]
        if not isinstance(error, KeyboardInterrupt | SystemExit):
            self.logger.error(
                f"Snakemake ends with an error ({type(error).__name__}). {len(active_jobs)} job(s) go on on the TPU "
                f"pod for at most {self.settings.lease} s: run the same command again to go on with them, or end one "
                f"by `{COMMAND} stop JOB`."
            )
            return
        self.cancelled = True
        done = {slot for slot, future in self.futures.items() if future.done()}
        # From runs, not futures: Ctrl-C may come before a job's future is stored.
        running = [run for slot, run in self.runs.items() if slot not in done]
        rest = f"its jobs end by themselves within {self.settings.lease} s. Look with `{COMMAND} status`."
        try:
            with noting_interrupts() as interrupts:
                most = f"at most {self.settings.grace} s"
                self.logger.info(f"Stopping {len(running)} job(s) on the TPU pod ({most}) ...")
                if interrupts:
                    raise KeyboardInterrupt
                self.driver.call(self._cancel(running), self.settings.grace + 60)
        except TimeoutError:
            self.logger.error(f"The pod does not answer: {rest}")
        except KeyboardInterrupt:
            self.logger.error(f"Not waiting for the pod any longer: {rest}")

    async def _cancel(self, runs: list[JobRun]) -> None:
        await asyncio.gather(*(run.cancel() for run in runs), return_exceptions=True)
        ending = [
            self.futures[run.slot]
            for run in runs
            if run.record.state == "launched" and run.slot in self.futures
        ]
        await asyncio.gather(*map(asyncio.wrap_future, ending), return_exceptions=True)

    def shutdown(self) -> None:
        super().shutdown()
        if not self.driver.ended:
            with contextlib.suppress(TimeoutError):
                self.left = self.driver.call(self._end(), END_SECONDS)
        self.driver.end()

    async def _end(self) -> str:
        left = await self.pool.close()
        await end(*(asyncio.all_tasks() - {asyncio.current_task()}))
        return left
