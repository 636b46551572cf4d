"""The ReportSpec that `trm report` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trm.pipeline.estimates import Estimates
from trm.pipeline.project import Project


def report_spec(project: Project) -> dict[str, Any]:
    """A ReportSpec (trm.analysis.specs) of the selected experiments."""
    estimates = Estimates(project, measured=False)  # the same on every machine
    scale = project.study.scale_name
    rebuild = f"snakemake --profile profiles/{'local' if scale == 'laptop' else scale}"
    shown = {figure.stem for figure in project.selection.shown}
    own: set[str] = set()
    experiments = []
    for name in project.selection.experiments:
        experiment = project.study.experiment(name)
        figures = [figure for figure in project.catalogue.figures_of(name) if figure.stem in shown]
        own.update(figure.stem for figure in figures)
        runs = sorted({run.name for point in experiment.points for run in point.runs})
        fits = dict.fromkeys(fit.file for figure in figures for fit in figure.fits)
        experiments.append(
            {
                "name": name,
                "question": experiment.definition.question,
                "hypothesis": experiment.definition.hypothesis,
                "needs": experiment.definition.hypothesis_needs,
                "expects": experiment.definition.expects or [],
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
        "study": project.study.name,
        "scale": scale,
        "intro": project.study.scale.about,
        "experiments": experiments,
        "figures": [figure.files[0] for figure in project.selection.shown if figure.stem not in own],
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
