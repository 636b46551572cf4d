"""The record of a launch in results/launches/: how it ended, and which runs it worked on."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from trm.errors import UserError
from trm.io import write_json
from trm.pipeline.places import Place
from trm.pipeline.project import Project


class Launch:
    """The record of a running launch.

    Args:
        project: the study.
    """

    def __init__(self, project: Project):
        self._project, self.started = project, time.time()
        self._before = set(project.done)

    def write(self, state: str, log: str) -> None:
        """Write the record. A folder or bucket that is out of reach is reported and stops nothing.

        Args:
            state: `finished`, `failed` or `interrupted`.
            log: Snakemake's own log.
        """
        name = time.strftime("%Y%m%dT%H%M%SZ.json", time.gmtime(self.started))
        try:
            document = {
                "arguments": sys.argv[1:],
                "state": state,
                "seconds": round(time.time() - self.started, 1),
                "log": log,
                "runs": self.runs(),
            }
            write_json(Path("results/launches", name), document)
        except UserError as error:
            print(error, file=sys.stderr)

    def runs(self) -> list[dict[str, Any]]:
        """Runs that were finished, or whose training wrote to its log, since the launch: run, state, seconds, log."""
        place = Place(self._project.place.prefix)  # what the bucket holds now
        found = []
        for run in self._project.runs:
            result = self._project.catalogue.run_files(run)[0]
            log = Path(self._project.settings.logs, "train", f"{run}.log")
            logged = log.exists() and log.stat().st_mtime >= self.started
            finished = place.exists(result)
            if logged or (finished and run not in self._before):
                state = "finished" if finished else "unfinished"
                seconds = _seconds(place, result) if finished else None
                found.append({"run": run, "state": state, "seconds": seconds, "log": str(log)})
        return found


def _seconds(place: Place, result: str) -> float | None:
    """Seconds of training; None if the file cannot be read, which the next job that reads it reports."""
    try:
        facts = json.loads(place.read(result))
        return round(float(facts["wall_seconds"]) + float(facts.get("setup_seconds", 0.0)), 1)
    except (OSError, UserError, ValueError, KeyError, TypeError, AttributeError):
        return None
