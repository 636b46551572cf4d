"""What the report reads: of the selected experiments, or of the results so far after a failure."""

import sys
from pathlib import Path
from typing import Any

from trm.errors import UserError
from trm.pipeline.catalogue import Figure
from trm.pipeline.estimates import Estimates
from trm.pipeline.project import Project
from trm.study.reading import parse

PARTIAL = Path("results/report.partial.html")
"""The report of the results so far, after a failure."""
PARTS = Path("results/partial")
"""Tables and figures of experiments that are not finished."""


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


def partial_spec(project: Project, asked: set[str]) -> dict[str, Any]:
    """`report_spec` of the experiments with a failed run, or with a finished one whose table is in `asked`. What they
    lack is made from the finished runs, in `PARTS`; figures that cannot be are left out, with a line on stderr."""
    document, shown = report_spec(project), []
    for section in document["experiments"]:
        begun = section["table"] in asked and project.done & project.study.experiment(section["name"]).runs
        if begun and not Path(section["table"]).exists():
            section |= _so_far(project, section["name"])
        if begun or section["failed"]:
            shown.append(section)
    return document | {"experiments": shown}


def _so_far(project: Project, experiment: str) -> dict[str, Any]:
    """Table and figures of an experiment from its finished runs."""
    from trm.analysis.specs import TableSpec
    from trm.analysis.tables import collect, save

    path, figures = PARTS / f"{experiment}.csv", []
    spec = parse(TableSpec, project.catalogue.table_spec(experiment, project.files.root), experiment)
    save(collect(spec, allow_missing=True), str(path))
    for figure in project.catalogue.figures_of(experiment):
        try:
            figures.append(_draw(figure, experiment, path))
        except UserError as error:
            print(f"left out of the partial report: {figure.stem}: {error}", file=sys.stderr)
    return {"table": str(path), "figures": figures}


def _draw(figure: Figure, experiment: str, path: Path) -> str:
    """Draw a figure of an experiment from its table at `path`; returns its file."""
    from trm.analysis.drawing import save, styled
    from trm.analysis.kinds import fit_and_draw
    from trm.analysis.origin import origin
    from trm.analysis.tables import load

    tables, out = [load(str(path))], PARTS / f"{figure.stem}.pdf"
    with styled():
        save(
            fit_and_draw(figure.spec, experiment, tables),
            out,
            {**origin(tables), "identity": figure.identity},
        )
    return str(out)
