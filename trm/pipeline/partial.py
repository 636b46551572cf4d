"""The report of what there is, when some job has failed: other runs finished, and what is missing stands in red."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from trm.io import write_json
from trm.pipeline.reporting import report_json
from trm.pipeline.workflow import Workflow


def write_partial_report(workflow: Workflow, config: dict[str, Any]) -> None:
    """Gather what exists and write results/report.html; its stamp differs from the whole report's, so it is replaced
    as soon as all runs are there. Never raises: the failure that led here is what the user must see."""
    work = Path("results/partial")
    try:
        document = report_json(workflow)
        for section in document["experiments"]:
            _gather(workflow, section, work)
        write_json(work / "report.json", document)
        if _trm(
            "report",
            "--spec",
            work / "report.json",
            "--out",
            "results/report.html",
            "--pdf",
            "results/report.pdf",
        ):
            write_json("results/report.json", {"identity": "partial"})
            print("results/report.html shows what there is; what is missing stands in red", file=sys.stderr)
    except Exception as error:
        print(f"no report of what there is could be written: {error}", file=sys.stderr)


def _gather(workflow: Workflow, section: dict[str, Any], work: Path) -> None:
    """Tables, fits and figures of an experiment from the runs that finished, where the whole ones are missing."""
    name = section["name"]
    if Path(section["table"]).exists():
        return
    spec, table = work / f"{name}.spec.json", work / f"{name}.csv"
    write_json(spec, workflow.table_json(name))
    if not _trm("table", "--experiment", spec, "--out", table, "--allow-missing"):
        return
    section["table"] = str(table)
    figures = []
    for figure in workflow.figures_of(name):
        fits = []
        for fit in figure.fits:
            out = work / f"{fit.name}.json"
            if _trm("fit", "--table", table, "--spec", workflow.fit_json(fit.name), "--out", out):
                fits.append(out)
        out = work / f"{figure.name}.pdf"
        if _trm(
            "plot",
            "--spec",
            workflow.figure_json(figure.name),
            "--table",
            table,
            "--fit",
            *fits,
            "--out",
            out,
        ):
            figures.append(str(out))
    section["figures"] = figures


def _trm(*words: Any) -> bool:
    command = [sys.executable, "-m", "trm", *map(str, words)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        last = (result.stderr.strip() or "no message").splitlines()[-1]
        print(f"skipped for the partial report: {shlex.join(command[2:5])}: {last}", file=sys.stderr)
    return result.returncode == 0
