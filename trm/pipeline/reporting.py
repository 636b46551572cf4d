"""What the report is made from, as `trm report` reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trm.pipeline import plan
from trm.pipeline.estimates import Estimates
from trm.pipeline.workflow import Workflow


def report_json(workflow: Workflow) -> dict[str, Any]:
    """A ReportSpec (trm.analysis.specs) for the selected experiments, with the report's identity as its stamp."""
    estimates = Estimates(workflow)
    shown = workflow.shown_figures()
    rebuild = f"snakemake --profile profiles/{_profile(workflow.scale)}"
    experiments = []
    for name in workflow.selected:
        experiment = workflow.study.experiment(name)
        figures = [figure for figure in workflow.figures_of(name) if workflow.is_shown(figure)]
        runs = {run.name for point in experiment.points for run in point.runs}
        experiments.append(
            {
                "name": name,
                "aliases": experiment.definition.aliases,
                "question": experiment.definition.question,
                "hypothesis": experiment.definition.hypothesis,
                "table": workflow.table_file(name),
                "fits": list(
                    dict.fromkeys(f"results/fits/{fit.name}.json" for f in figures for fit in f.fits)
                ),
                "figures": [f"results/figures/{figure.name}.pdf" for figure in figures],
                "planned_runs": len(runs),
                "planned_hours": sum(estimates.of(run).device_hours for run in runs),
                "failed": failed_runs(sorted(runs), workflow.logs),
                "rebuild": f"{rebuild} {name}",
            }
        )
    budget, budget_rows = plan.report_rows(workflow)
    return {
        "study": workflow.study.name,
        "scale": workflow.scale,
        "budget": budget,
        "budget_rows": budget_rows,
        "experiments": experiments,
        "figures": [
            f"results/figures/{figure.name}.pdf" for figure in shown if figure.stem in _study_wide(workflow)
        ],
        "rebuild": rebuild,
    }


def _study_wide(workflow: Workflow) -> set[str]:
    own = {figure.stem for name in workflow.study.experiments for figure in workflow.figures_of(name)}
    return set(workflow.figures) - own


def _profile(scale: str) -> str:
    return {"laptop": "local"}.get(scale, scale)


def failed_runs(runs: list[str], logs: str) -> list[dict[str, str]]:
    """Runs without results whose log says why: the last line of the log is the sentence."""
    failed = []
    for run in runs:
        log = Path(f"{logs}/train/{run}.log")
        if not Path(f"results/runs/{run}/training.json").exists() and log.exists():
            lines = [
                line
                for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
                if line.strip()
            ]
            failed.append({"run": run, "sentence": lines[-1][:500] if lines else "", "log": str(log)})
    return failed
