"""What the main Snakemake process does besides running jobs: lock, plan of a dry run, events, partial report."""

import atexit
import json
import logging
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, NoReturn, TextIO

from snakemake.logging import get_event, logger
from snakemake.settings.enums import Quietness
from snakemake_interface_executor_plugins.settings import SharedFSUsage
from snakemake_interface_logger_plugins.common import LogEvent

from trm.backends.tpu.chips import tpu_files
from trm.errors import UserError
from trm.launch import forkclient, forkserver, lock
from trm.pipeline import plan
from trm.pipeline.estimates import Estimates
from trm.pipeline.project import Project
from trm.pipeline.reporting import PARTIAL
from trm.pipeline.settings import EVENTS

DEFAULT_RATE = (100, 1)
"""Jobs and seconds of Snakemake's default `--max-jobs-per-timespan`."""
ONE_REQUEST = 2.0
"""Seconds in which a second SIGINT is the first again: from the terminal, and passed on by `study run`."""
UNLOCKED = "Error: Directory cannot be locked."
"""What Snakemake says in a dry run beside a run, or after a kill, and then answers."""
UNQUOTED = re.compile(r"[\w@%+=:,./~-]+")
"""Paths that a shell takes as they are."""
PLUGINS = ("snakemake_executor_plugin_", "trm/slurm/")
"""Messages of an executor about machines and jobs are for the user; Snakemake's own messages are not."""


def refuse(problem: object) -> NoReturn:
    """End Snakemake with a sentence; it shows an exception of a function of the workflow with a traceback."""
    logger.error(str(problem))
    raise SystemExit(1)


def lift_default_rate_limit(scheduling: Any) -> None:
    """Start jobs as soon as there is room for them, unless the user has set another rate than Snakemake's default.

    With a limit, every pass of Snakemake's scheduler (9.27) sets a timer for one more pass, and so does every finished
    job: after 300 jobs it makes hundreds of passes a second and takes a core from training.
    """
    limit = scheduling.max_jobs_per_timespan
    if limit and (limit.max_jobs, limit.timespan) == DEFAULT_RATE:
        scheduling.max_jobs_per_timespan = None


class Controller(logging.Filter):
    """Listens to Snakemake's log events. `snakemake`: its `workflow` object of the Snakefile."""

    def __init__(self, project: Project, snakemake: Any):
        super().__init__()
        self._interrupted = self._failed = False
        self._interrupted_at = 0.0
        self._lock: TextIO | None = None
        self._project, self._snakemake = project, snakemake
        if not snakemake.is_main_process:
            return
        output = snakemake.output_settings
        if output.dryrun:
            if not (output.printshellcmds or output.verbose):
                # like `-n --quiet`: counts instead of every job (394 lines for the shipped study)
                output.quiet = {Quietness.RULES, Quietness.PROGRESS}
            atexit.register(lambda: plan.announce(project, snakemake, self._failed))
        else:
            signal.signal(signal.SIGINT, self._interrupt)
        self._dryrun = output.dryrun
        self._events = Events(project, snakemake)
        logger.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Take the lock when jobs are about to run; every record passes but that a dry run has no lock."""
        if self._dryrun and str(record.msg).startswith(UNLOCKED):
            return False
        self._failed |= record.levelno >= logging.ERROR
        # the one event before Snakemake looks at its own locks; commands that run nothing (--summary, --lint) lack it
        if get_event(record) == LogEvent.WORKFLOW_STARTED:
            self._check_targets()
            if not self._dryrun:
                self._lock = lock.join()
                lift_default_rate_limit(self._snakemake.scheduling_settings)
        # only now Snakemake knows its executor
        if get_event(record) == LogEvent.RUN_INFO and not self._dryrun:
            self._refuse_no_cores()
            self._refuse_processors()
            self._refuse_spaces()
            self._date_back()
            self._start_servers()
        if not self._dryrun:
            self._events.take(record)
        return True

    def _check_targets(self) -> None:
        """Refuse a name that the study does not have: Snakemake would say nothing of the nearest one."""
        rules = {rule.name for rule in self._snakemake.rules}
        try:
            self._project.check_targets(set(self._snakemake.dag_settings.targets) - rules)
        except UserError as error:
            refuse(error)

    def _refuse_no_cores(self) -> None:
        """Snakemake would wait for ever."""
        if self._snakemake.local_exec and self._snakemake.global_resources["_cores"].value == 0:
            refuse("--cores 0 leaves no core for a job: give 1 or more, or `all`")

    def _refuse_processors(self) -> None:
        """Refuse to train a study for accelerators on a machine without any, unless `backend` was chosen."""
        study, training = self._project.study, {job.rule.name for job in self._snakemake.dag.needrun_jobs()}
        network = training & {"train", "evaluate"}
        hardware = Estimates(self._project, measured=False).hardware
        alone = self._snakemake.local_exec and not self._project.settings.backend
        gpus = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()  # Windows has the latter
        gpus &= os.environ.get("CUDA_VISIBLE_DEVICES", "0")[:1] not in ("", "-")
        here = bool(tpu_files()) or gpus
        if alone and "train" in training and not (hardware.host_memory or here):
            refuse(
                f"{study.path} is for {study.scale.hardware}, and this machine has no accelerator: `snakemake "
                "--profile profiles/local` runs config/laptop.yaml (this one on processors: --config backend=cpu)"
            )
        if self._snakemake.local_exec and self._project.settings.backend == "cuda" and network and not gpus:
            refuse(
                "the profile trains on a GPU (backend=cuda), and this machine has none that can be seen: run "
                "`nvidia-smi`, or take profiles/local"
            )

    def _refuse_spaces(self) -> None:
        """Snakemake writes the path of its Python into jobs of other machines without quotes."""
        shared = SharedFSUsage.SOFTWARE_DEPLOYMENT in self._snakemake.storage_settings.shared_fs_usage
        if not self._snakemake.local_exec and shared and not UNQUOTED.fullmatch(sys.executable):
            refuse(
                f"jobs of a cluster cannot start {sys.executable}: move the project to a folder without spaces and "
                "quotation marks in its path, and remove .venv there (`make envs` makes it again)"
            )

    def _date_back(self) -> None:
        """Set future modification times of inputs to now: after the clock was set back, Snakemake would delete outputs
        as older than their inputs."""
        now = time.time()
        for path in {str(file) for job in self._snakemake.dag.needrun_jobs() for file in job.input}:
            with suppress(OSError):
                if os.stat(path).st_mtime > now:
                    os.utime(path, (now, now))

    def _start_servers(self) -> None:
        """Short jobs of this machine run in forks; not where another environment or machine runs them."""
        snakemake = self._snakemake
        wanted = os.environ.get(forkclient.FOLDER) != "0" and sys.platform == "linux"
        if wanted and snakemake.local_exec and not snakemake.deployment_settings.deployment_method:
            with suppress(OSError):  # no folder for temporary files: jobs run by themselves
                atexit.register(forkserver.Servers(self._project.study.scale.threads).close)

    def _interrupt(self, number: int, frame: Any) -> None:
        again = self._interrupted and time.monotonic() - self._interrupted_at < ONE_REQUEST
        self._interrupted, self._interrupted_at = True, time.monotonic()
        if not again:
            signal.default_int_handler(number, frame)

    def failed(self) -> None:
        """After a failure: a report of the results so far. Not after a signal: its sender does not want to wait."""
        if self._interrupted or self._snakemake.scheduler._user_kill:  # Ctrl-C or SIGTERM
            return
        jobs = [job for job in self._snakemake.dag.jobs if job.rule.name == "table"]
        write_partial_report(self._project.options, {str(file) for job in jobs for file in job.output})
        post(f"the study failed: {PARTIAL} shows the results so far")

    def succeeded(self) -> None:
        """After success: remove the partial report of an earlier failure."""
        PARTIAL.unlink(missing_ok=True)
        post("the study is finished: results/report.html")


def write_partial_report(options: str, asked: set[str]) -> None:
    """Collect what exists into `PARTIAL`, in a process of its own: runs have finished since the Snakefile was read. It
    raises no error, as the user must see the failure that led here. A signal to either process ends both.

    Args:
        options: by which a `trm` command sees the study.
        asked: tables that the failed launch was to make or to use.
    """

    def end(number: int, frame: Any) -> NoReturn:
        raise SystemExit(128 + number)

    words = [*shlex.split(options), "--partial", *sorted(asked), "--out", str(PARTIAL)]
    previous = signal.signal(signal.SIGTERM, end)
    try:
        command = [sys.executable, "-m", "trm", "report", *words]
        code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    finally:
        signal.signal(signal.SIGTERM, previous)
    if code < 0:
        end(-code, None)
    if code == 0:
        print(f"{PARTIAL}: the results so far; missing parts are marked in red", file=sys.stderr)


class Events:
    """Reports what concerns the user to the console that started Snakemake: one JSON line for each event.

    The console is another process (`trm.launch.console`). They communicate through a file, so that neither waits for
    the other and either may die. `snakemake`: Snakemake's `workflow` object of the Snakefile.
    """

    def __init__(self, project: Project, snakemake: Any):
        self._project, self._snakemake = project, snakemake
        path = os.environ.get(EVENTS)
        self._path = Path(path) if path else None

    def take(self, record: logging.LogRecord) -> None:
        """Write one record, if the console has a use for it."""
        if self._path is None:
            return
        facts = self._facts(get_event(record), record)
        if facts:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(facts) + "\n")

    def _facts(self, event: Any, record: Any) -> dict[str, Any] | None:
        if event == LogEvent.WORKFLOW_STARTED:
            return {"event": "started"}
        if event == LogEvent.RUN_INFO:
            return self._plan()
        if event == LogEvent.JOB_INFO:
            log, output = [list(getattr(record, name) or [""]) for name in ("log", "output")]
            run = dict(record.wildcards or {}).get("run", "")
            facts = {"rule": record.rule_name, "run": run, "log": str(log[0]), "output": str(output[0])}
            return {"event": "job", "id": record.jobid, "text": record.rule_msg or record.rule_name, **facts}
        if event == LogEvent.JOB_FINISHED:
            return {"event": "finished", "id": record.job_id}
        if event == LogEvent.JOB_ERROR:
            return {"event": "failed", "id": record.jobid}
        shown = record.levelno >= logging.WARNING or any(part in record.pathname for part in PLUGINS)
        if event is None and shown and record.msg and not str(record.msg).startswith("Exiting because"):
            return {"event": "message", "text": record.getMessage()}
        return None

    def _plan(self) -> dict[str, Any]:
        """Runs that will be trained with the seconds that they should take and their names for people, the number of
        other jobs, jobs at once."""
        jobs = list(self._snakemake.dag.needrun_jobs())
        estimates = Estimates(self._project)
        runs = [job.wildcards.run for job in jobs if job.rule.name == "train"]
        seconds = {run: estimates.of(run).seconds for run in runs}
        return {
            "event": "plan",
            "runs": seconds,
            "names": {run: words for run, words in self._project.names_in_words().items() if run in seconds},
            "others": len(jobs) - len(runs),
            "at_once": plan.at_once(self._snakemake, self._project),
            "start": estimates.hardware.start,
        }


def post(text: str) -> None:
    """Send a line to the webhook in $TRM_WEBHOOK (Slack, Mattermost and others take `{"text": ...}`).

    The address is a secret, so it is a variable and not a setting. A failing webhook stops nothing.
    """
    address = os.environ.get("TRM_WEBHOOK")
    if not address:
        return
    body = json.dumps({"text": f"{Path.cwd().name} on {platform.node()}: {text}"}).encode()
    try:
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=10).close()
    except (OSError, ValueError, HTTPException) as error:
        print(f"TRM_WEBHOOK could not be reached: {type(error).__name__}", file=sys.stderr)
