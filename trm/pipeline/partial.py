"""results/report.partial.html: the results so far when a job has failed. The full report is left untouched."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from trm.errors import UserError
from trm.io import write_json
from trm.pipeline.project import Project, open_project
from trm.pipeline.reporting import report_spec

REPORT = Path("results/report.partial.html")


def write_partial_report(config: dict[str, Any], asked: set[str]) -> None:
    """Collect what exists into `REPORT`. Raises no error: the user must see the failure that led here. A signal to this
    process or to a command that it started ends it.

    Args:
        config: Snakemake's config.
        asked: tables that the failed launch was to make or to use.
    """
    work = Path("results/partial")
    previous = signal.signal(signal.SIGTERM, _end)
    try:
        project = open_project(config)  # again: runs have finished since the Snakefile was read
        document = report_spec(project)
        sections = document["experiments"]
        useful = [s for s in sections if s["table"] in asked and project.done & _runs(project, s["name"])]
        document["experiments"] = [s for s in sections if s in useful or s["failed"]]
        for section in useful:
            _gather(project, section, work)
        write_json(work / "report.json", document)
        if _trm("report", "--spec", work / "report.json", "--out", REPORT):
            print(f"{REPORT}: the results so far; missing parts are marked in red", file=sys.stderr)
    except (UserError, OSError, ValueError, LookupError) as error:
        print(f"no partial report could be written: {error}", file=sys.stderr)
    finally:
        signal.signal(signal.SIGTERM, previous)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def remove_partial_report() -> None:
    """Remove the report of an earlier failure."""
    REPORT.unlink(missing_ok=True)


def _runs(project: Project, experiment: str) -> set[str]:
    return {run.name for point in project.study.experiment(experiment).points for run in point.runs}


def _gather(project: Project, section: dict[str, Any], work: Path) -> None:
    """Table, fits and figures of an experiment from its finished runs, if the complete table is missing."""
    name = section["name"]
    if Path(section["table"]).exists():
        return
    spec, table = work / f"{name}.spec.json", work / f"{name}.csv"
    write_json(spec, project.catalogue.table_spec(name, project.place.root))
    if not _trm("table", "--experiment", spec, "--out", table, "--allow-missing"):
        return
    section["table"] = str(table)
    figures = []
    for figure in project.catalogue.figures_of(name):
        fits = []
        for fit in figure.fits:
            out = work / f"{fit.name}.json"
            if _trm("fit", "--table", table, "--spec", fit.json, "--out", out):
                fits.append(out)
        out = work / f"{figure.name}.pdf"
        if _trm("plot", "--spec", figure.json, "--table", table, "--fit", *fits, "--out", out):
            figures.append(str(out))
    section["figures"] = figures


def _trm(*words: Any) -> bool:
    command = [sys.executable, "-m", "trm", *map(str, words)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode < 0:
        _end(-result.returncode, None)
    if result.returncode:
        last = (result.stderr.strip() or "no message").splitlines()[-1]
        print(f"left out of the partial report: {shlex.join(command[2:5])}: {last}", file=sys.stderr)
    return result.returncode == 0
