"""What a running Snakemake tells the console that started it: one JSON line for each event.

The console is another process (`trm.pipeline.console`). A file lies between them, so that neither waits for the other
and each may die.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from snakemake.logging import get_event
from snakemake_interface_logger_plugins.common import LogEvent

from trm.pipeline.estimates import Estimates
from trm.pipeline.project import Project
from trm.pipeline.settings import EVENTS

PLUGINS = "snakemake_executor_plugin_"
"""What an executor plugin says of machines and jobs concerns the user; what Snakemake says of itself does not."""


class Events:
    """Writes Snakemake's log records that concern the user.

    Args:
        project: the study.
        snakemake: Snakemake's `workflow` object of the Snakefile.
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
        shown = record.levelno >= logging.WARNING or PLUGINS in record.pathname
        if event is None and shown and record.msg and not str(record.msg).startswith("Exiting because"):
            return {"event": "message", "text": record.getMessage()}
        return None

    def _plan(self) -> dict[str, Any]:
        """Runs that will be trained with the seconds that they should take, the number of other jobs, jobs at once."""
        jobs = list(self._snakemake.dag.needrun_jobs())
        estimates = Estimates(self._project)
        runs = [job.wildcards.run for job in jobs if job.rule.name == "train"]
        seconds = {run: estimates.of(run).seconds for run in runs}
        return {
            "event": "plan",
            "runs": seconds,
            "others": len(jobs) - len(runs),
            "at_once": estimates.hardware.jobs,
            "start": estimates.hardware.start,
        }
