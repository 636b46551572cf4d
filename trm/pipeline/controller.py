"""What the main Snakemake process does besides running jobs: lock, plan of a dry run, partial report."""

from __future__ import annotations

import atexit
import json
import logging
import os
import platform
import signal
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from snakemake.logging import get_event, logger
from snakemake.settings.enums import Quietness
from snakemake_interface_logger_plugins.common import LogEvent

from trm.io import write_json
from trm.pipeline import checks, forkserver, lock, plan
from trm.pipeline.events import Events
from trm.pipeline.partial import remove_partial_report, write_partial_report
from trm.pipeline.project import Project


class Controller(logging.Filter):
    """Listens to Snakemake's log events.

    Args:
        project: the study.
        config: Snakemake's config.
        snakemake: Snakemake's `workflow` object of the Snakefile.
    """

    def __init__(self, project: Project, config: dict[str, Any], snakemake: Any):
        super().__init__()
        self._config = config
        self._interrupted = self._failed = False
        self._lock: TextIO | None = None
        self._project, self._snakemake = project, snakemake
        if not snakemake.is_main_process:
            return
        output = snakemake.output_settings
        if output.dryrun:
            if not (output.printshellcmds or output.verbose):
                # like `-n --quiet`: counts instead of every job (394 lines for the shipped study)
                output.quiet = {Quietness.RULES, Quietness.PROGRESS}
            atexit.register(self._announce, snakemake)
        else:
            signal.signal(signal.SIGINT, self._interrupt)
        self._dryrun = output.dryrun
        self._events = Events(project, snakemake)
        logger.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Take the lock when jobs are about to run; every record passes."""
        self._failed |= record.levelno >= logging.ERROR
        # the one event before Snakemake looks at its own locks; commands that run nothing (--summary, --lint) lack it
        if get_event(record) == LogEvent.WORKFLOW_STARTED and not self._dryrun:
            self._lock = lock.join()
            for sentence in self._edited_in_vain():
                logger.warning(sentence)
            write_json(
                checks.LISTS.format(self._project.study.scale_name), self._project.study.replaced_figures
            )
        # only now Snakemake knows its executor
        if get_event(record) == LogEvent.RUN_INFO and not self._dryrun:
            self._start_servers()
        if not self._dryrun:
            self._events.take(record)
        return True

    def _start_servers(self) -> None:
        """Short jobs of this machine run in forks; not where another environment or machine runs them."""
        snakemake = self._snakemake
        wanted = os.environ.get(forkserver.FOLDER) != "0" and sys.platform == "linux"
        if wanted and snakemake.local_exec and not snakemake.deployment_settings.deployment_method:
            with suppress(OSError):  # no folder for temporary files: jobs run by themselves
                atexit.register(forkserver.Servers(self._project.study.scale.threads).close)

    def _announce(self, snakemake: Any) -> None:
        plan.announce(self._project, snakemake, self._failed)
        for sentence in self._edited_in_vain():
            print(sentence, file=sys.stderr)

    def _edited_in_vain(self) -> list[str]:
        return checks.edited_in_vain(self._project.study, self._project.settings.study)

    def _interrupt(self, number: int, frame: Any) -> None:
        self._interrupted = True
        signal.default_int_handler(number, frame)

    def failed(self) -> None:
        """After a failure: a report of the results so far. Not after a signal: its sender does not want to wait."""
        if self._interrupted or self._snakemake.scheduler._user_kill:  # Ctrl-C or SIGTERM
            return
        jobs = [job for job in self._snakemake.dag.jobs if job.rule.name == "table"]
        write_partial_report(self._config, {str(file) for job in jobs for file in job.output})
        post("the study failed: results/report.partial.html shows the results so far")

    def succeeded(self) -> None:
        """After success: remove the partial report of an earlier failure."""
        remove_partial_report()
        post("the study is finished: results/report.html")


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
    except (OSError, ValueError) as error:
        print(f"TRM_WEBHOOK could not be reached: {type(error).__name__}", file=sys.stderr)
