"""What the report reads, and the report of the results so far after a failure."""

import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from trm.errors import UserError
from trm.io import write_json
from trm.pipeline.estimates import Estimates
from trm.pipeline.project import Project, open_project

PARTIAL = Path("results/report.partial.html")


def report_spec(project: Project) -> dict[str, Any]:
    """A ReportSpec (trm.analysis.specs) of the selected experiments."""
    estimates = Estimates(project, measured=False)  # does not change as runs finish
    scale = project.study.scale_name
    rebuild = f"snakemake --profile profiles/{'local' if scale == 'laptop' else scale}"
    shown = {figure.stem for figure in project.selection.shown}
    own: set[str] = set()
    experiments = []
    for name in project.selection.experiments:
        experiment = project.study.experiment(name)
        figures = [figure for figure in project.catalogue.figures_of(name) if figure.stem in shown]
        own.update(figure.stem for figure in figures)
        runs = sorted(experiment.runs)
        fits = dict.fromkeys(fit.file for figure in figures for fit in figure.fits)
        experiments.append(
            {
                "name": name,
                "question": experiment.definition.question,
                "hypothesis": experiment.definition.hypothesis,
                "expects": experiment.definition.expects,
                "table": project.catalogue.table_file(name),
                "fits": list(fits),
                "figures": [figure.files[0] for figure in figures],
                "planned_runs": len(runs),
                "planned_hours": sum(estimates.of(run).device_hours for run in runs),
                "failed": failed_runs(project, runs),
                "rebuild": f"{rebuild} {name}",
            }
        )
    return {
        "study": project.study.file.name,
        "scale": scale,
        "intro": project.study.file.about,
        "experiments": experiments,
        "figures": [figure.files[0] for figure in project.selection.shown if figure.stem not in own],
        "identities": {figure.stem: figure.identity for figure in project.selection.shown},
        "rebuild": rebuild,
    }


def failed_runs(project: Project, runs: list[str]) -> list[dict[str, str]]:
    """Unfinished runs that have a log; the last line of the log is the reason that the report gives."""
    failed = []
    for run in runs:
        log = Path(project.settings.logs, "train", f"{run}.log")
        if run not in project.done and log.exists():
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            last = next((line for line in reversed(lines) if line.strip()), "")
            failed.append({"run": run, "sentence": last[:500], "log": str(log)})
    return failed


def write_partial_report(config: dict[str, Any], asked: set[str]) -> None:
    """Collect what exists into `PARTIAL`. Raises no error: the user must see the failure that led here. A signal to
    this process or to a command that it started ends it.

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
        useful = [
            s
            for s in sections
            if s["table"] in asked and project.done & project.study.experiment(s["name"]).runs
        ]
        document["experiments"] = [s for s in sections if s in useful or s["failed"]]
        for section in useful:
            _gather(project, section, work)
        write_json(work / "report.json", document)
        if document["experiments"] and _trm("report", "--spec", work / "report.json", "--out", PARTIAL):
            print(f"{PARTIAL}: the results so far; missing parts are marked in red", file=sys.stderr)
    except (UserError, OSError, ValueError, LookupError) as error:
        print(f"no partial report could be written: {error}", file=sys.stderr)
    finally:
        signal.signal(signal.SIGTERM, previous)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _gather(project: Project, section: dict[str, Any], work: Path) -> None:
    """Table, fits and figures of an experiment from its finished runs, if the complete table is missing."""
    name = section["name"]
    if Path(section["table"]).exists():
        return
    table, options = work / f"{name}.csv", shlex.split(project.options)
    words = ["--experiment", name, "--root", project.files.root, "--out", table, "--allow-missing"]
    if not _trm("table", *options, *words):
        return
    section["table"] = str(table)
    figures = []
    for figure in project.catalogue.figures_of(name):
        fits = []
        for fit in figure.fits:
            out = work / f"{fit.name}.json"
            if _trm("fit", "--table", table, "--spec", fit.json, "--out", out):
                fits.append(out)
        out = work / f"{figure.stem}.pdf"
        words = ["--table", table, "--fit", *fits, "--identity", figure.identity, "--out", out]
        if _trm("plot", "--spec", figure.json, *words):
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
