"""The plan of a study: every run's cost, what is done already, totals, and what a budget buys."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trm.pipeline.estimates import Estimates
from trm.pipeline.naming import REPORT, published, source_name
from trm.pipeline.project import Project
from trm.pipeline.spent import sentence, spent
from trm.study.cost import bytes_text, device_text, flops_text, seconds_text
from trm.study.merge import nearest
from trm.study.text import count

GCS_USD_PER_GB_MONTH = 0.020
"""List price of standard storage in a single region; for the plan's total only."""


def document(
    project: Project,
    jobs: int | None = None,
    budget: float | None = None,
    names: Iterable[str] | None = None,
    point: str = "",
    estimates: Estimates | None = None,
) -> dict[str, Any]:
    """The plan of the experiments `names` (None: those selected) as plain data; `point`: of one point of each.

    A run or an evaluation that several experiments share is counted at the first of them. `todo_*` leaves out what
    exists. `wall_seconds` is never less than the longest chain of jobs: data, the slowest run, its evaluation, the
    drawing.
    """
    estimates = estimates or Estimates(project)
    seen: set[str] = set()
    measured: dict[str, float] = {}
    experiments = []
    for name in project.selection.experiments if names is None else names:
        experiment = project.study.experiment(name)
        points = (experiment.point(point),) if point else experiment.points
        asked = list(dict.fromkeys(run.name for item in points for run in item.runs))
        rows = []
        for item in points:
            for run in item.runs:
                if run.name not in seen:
                    seen.add(run.name)
                    rows.append(_row(project, estimates, item.label, run.name))
        todo = [row for row in rows if not row["done"]]
        evaluations = {
            evaluation: estimates.evaluation(evaluation)
            for item in points
            for evaluation in item.evaluations
            if evaluation not in measured and not project.place.exists(f"results/runs/{evaluation}")
        }
        measured.update(evaluations)
        evaluating = sum(evaluations.values())
        evaluating_hours = evaluating * estimates.hardware.devices / 3600
        experiments.append(
            {
                "experiment": name,
                "points": len(points),
                "shared_runs": sum(len(item.runs) for item in points) - len(rows),
                "asks": asked,
                "runs": rows,
                "todo_runs": len(todo),
                "todo_evaluations": len(evaluations),
                "evaluation_seconds": evaluating,
                "evaluation_device_hours": evaluating_hours,
                "todo_seconds": sum(row["seconds"] for row in todo) + evaluating,
                "todo_device_hours": sum(row["device_hours"] for row in todo) + evaluating_hours,
                "todo_flops": sum(row["flops"] for row in todo),
                "todo_usd": sum(row["usd"] for row in todo) + evaluating * estimates.hardware.usd_per_second,
            }
        )
    at_once = jobs or estimates.hardware.jobs
    chosen = [] if point else [item["experiment"] for item in experiments]
    prepared = _preparation(project, estimates, [row["run"] for item in experiments for row in item["runs"]])
    drawing = _drawing(project, estimates, chosen)
    seconds = sum(item["todo_seconds"] for item in experiments) + sum(prepared.values()) + sum(drawing)
    slowest = max(
        (row["seconds"] for item in experiments for row in item["runs"] if not row["done"]), default=0.0
    )
    chain = max(prepared.values(), default=0.0) + slowest + max(measured.values(), default=0.0)
    chain += min(len(drawing), 5) * estimates.hardware.start  # table, fit, figure, its publication, report
    kept = sum(row["checkpoint_bytes"] for item in experiments for row in item["runs"])
    kept *= project.study.scale.runtime.keep_checkpoints + 1
    data = [project.runs[row["run"]].config.data for item in experiments for row in item["runs"]]
    result: dict[str, Any] = {
        "study": project.study.name,
        "scale": project.study.scale_name,
        "device": estimates.hardware.device,
        "slices": list(estimates.hardware.slices),
        "jobs": at_once,
        "experiments": experiments,
        "todo_runs": sum(item["todo_runs"] for item in experiments),
        "todo_evaluations": len(measured),
        "files": {file: found for item in data for file, found in zip(item.files, item.sha256)},
        "preparation_seconds": sum(prepared.values()),
        "drawing_seconds": sum(drawing),
        "todo_seconds": seconds,
        "chain_seconds": chain,
        "wall_seconds": max(seconds / at_once, chain),
        "todo_device_hours": sum(item["todo_device_hours"] for item in experiments),
        "todo_usd": sum(item["todo_usd"] for item in experiments),
        "measured_runs": estimates.measured.runs,
        "measured_factor": estimates.measured.factor,
        "hardware": project.study.scale.hardware,
        "checkpoint_bytes": kept,
        "storage_usd_per_month": kept / 1e9 * GCS_USD_PER_GB_MONTH,
    }
    if (so_far := spent(estimates.hardware))["launches"]:
        result["spent"] = so_far
    if estimates.hardware.slices:
        result["pod_hours"] = result["wall_seconds"] / 3600
        result["price"] = _price_words(project, estimates)
    if budget is not None:
        result["budget"] = buys(experiments, budget)
    if project.settings.grant_days:
        hours = project.settings.grant_days * 24 * at_once * estimates.hardware.devices
        result["grant"] = buys(_by_phase(project, experiments), hours)
        result["grant"]["days"] = project.settings.grant_days
        result["grant"]["phases"] = project.study.phases
    return result


def _price_words(project: Project, estimates: Estimates) -> str:
    pricing = project.settings.pricing
    if pricing == "grant":
        return "free under the grant"
    if pricing == "spot" and estimates.hardware.usd_spot is None:
        return "on-demand prices: the spot price is lower, but unknown (usd_spot in config/hardware.yaml)"
    return "spot prices" if pricing == "spot" else "on-demand prices"


def _by_phase(project: Project, experiments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The experiments in the order of the study's phases; those of no phase come last."""
    phases = project.study.phases

    def place(item: dict[str, Any]) -> int:
        phase = project.study.experiment(item["experiment"]).definition.phase
        return phases.index(phase) if phase else len(phases)

    return sorted(experiments, key=place)


def _preparation(project: Project, estimates: Estimates, runs: list[str]) -> dict[str, float]:
    """Seconds of the missing pools and data sets of runs that are not finished."""
    found: dict[str, float] = {}
    for name in runs:
        if name not in project.done:
            run = project.runs[name]
            manifests = (
                project.catalogue.source_files(source_name(run.config.data))[0],
                project.catalogue.dataset_manifest(name),
            )
            for manifest in manifests:
                if manifest not in found and not project.place.exists(manifest):
                    found[manifest] = estimates.data(manifest, run)
    return found


def _drawing(project: Project, estimates: Estimates, experiments: list[str]) -> list[float]:
    """Seconds of the missing tables, fits, figures and the report of some experiments, a job each."""
    catalogue, wanted = project.catalogue, []
    for name in experiments:
        figures = catalogue.figures_of(name)
        wanted += [catalogue.table_file(name)]
        wanted += [fit.file for figure in figures for fit in figure.fits]
        wanted += [figure.files[0] for figure in figures]
        wanted += [published(figure.stem) for figure in figures]
    missing = [path for path in dict.fromkeys([*wanted, REPORT]) if not project.place.exists(path)]
    return [estimates.hardware.start] * len(missing) if experiments else []


def _row(project: Project, estimates: Estimates, label: str, run: str) -> dict[str, Any]:
    cost = asdict(estimates.of(run))
    source = "compiled estimate" if cost.pop("compiled") else "FLOPs"
    known = {"run": run, "point": label, "seed": project.runs[run].config.seed, "done": run in project.done}
    return {**known, **cost, "step_time": source}


def buys(experiments: list[dict[str, Any]], budget: float, todo: bool = True) -> dict[str, Any]:
    """Which experiments a number of device-hours pays for, in the study's order; one that costs more than is left is
    passed over. A run is paid for once, by the first experiment that is bought; `todo`: and not at all if it is done.
    """
    costs = {
        row["run"]: 0.0 if todo and row["done"] else row["device_hours"]
        for item in experiments
        for row in item["runs"]
    }
    left, paid, rows = budget, set(), []
    for item in experiments:
        price = sum(costs[run] for run in item["asks"] if run not in paid)
        price += item.get("evaluation_device_hours", 0.0) if todo else 0.0
        bought = price <= left
        if bought:
            left -= price
            paid.update(item["asks"])
        rows.append({"experiment": item["experiment"], "device_hours": price, "bought": bought, "left": left})
    return {
        "device_hours": budget,
        "rows": rows,
        "bought": [row["experiment"] for row in rows if row["bought"]],
        "passed_over": [row["experiment"] for row in rows if not row["bought"]],
        "left": left,
    }


def text(document: dict[str, Any], runs: bool = False) -> str:
    """The plan for people."""
    todo = count(document["todo_runs"], "run")
    lines = [
        f"Study {document['study']} at scale {document['scale']}: {todo} to train",
        "",
        f"{'experiment':<24}{'points':>7}{'runs':>6}{'to do':>6}{'shared':>7}{'FLOPs':>13}{'time':>9}"
        f"{'device time':>12}{'USD':>9}",
    ]
    for item in document["experiments"]:
        price = f"{item['todo_usd']:,.2f}" if item["todo_usd"] else "-"
        lines.append(
            f"{item['experiment']:<24}{item['points']:>7}{len(item['runs']):>6}{item['todo_runs']:>6}"
            f"{item['shared_runs']:>7}{flops_text(item['todo_flops']):>13}{seconds_text(item['todo_seconds']):>9}"
            f"{device_text(item['todo_device_hours']):>12}{price:>9}"
        )
        if runs:
            lines += [_run_line(row) for row in item["runs"]]
    lines += ["", *_totals(document)]
    if "budget" in document:
        head = f"What {document['budget']['device_hours']:g} device-hours buy, in the study's order"
        lines += ["", *_budget_lines(document["budget"], head)]
    if "grant" in document:
        days, hours = document["grant"]["days"], device_text(document["grant"]["device_hours"])
        order = (
            f"by phase ({', '.join(phases)})"
            if (phases := document["grant"]["phases"])
            else "in the study's order"
        )
        head = f"What fits into {days:g} days ({hours} of {document['device']} time), {order}"
        lines += ["", *_budget_lines(document["grant"], head)]
    return "\n".join(lines)


def _run_line(row: dict[str, Any]) -> str:
    state = "done " if row["done"] else "to do"
    return (
        f"  {state} {row['run']}: {row['parameters']:,} parameters, {row['steps']:,} steps, "
        f"{flops_text(row['flops'])}, {seconds_text(row['seconds'])}, {bytes_text(row['memory_bytes'])} of memory"
        + (f" in {row['micro_batches']} micro-batches" if row["micro_batches"] > 1 else "")
    )


def _totals(document: dict[str, Any]) -> list[str]:
    price = f", ${document['todo_usd']:,.2f}" if document["todo_usd"] else ""
    month = f" (${document['storage_usd_per_month']:.2f} a month in a bucket)" if document["todo_usd"] else ""
    device = f"{device_text(document['todo_device_hours'])} of {document['device']} time{price}"
    parts = f"{seconds_text(document['preparation_seconds'])} for data and "
    parts += f"{seconds_text(document['drawing_seconds'])} for tables and figures"
    return [
        f"Total: {seconds_text(document['todo_seconds'])} of jobs ({device}), including {parts}",
        f"About {seconds_text(document['wall_seconds'])} with {count(document['jobs'], 'job')} at once; "
        f"the longest chain of jobs takes {seconds_text(document['chain_seconds'])}",
        # a pod costs as long as it exists
        *(
            [f"{device_text(document['pod_hours'])} of the pod; {document['price']}"]
            if "pod_hours" in document
            else []
        ),
        *([sentence(document["spent"], document["device"])] if "spent" in document else []),
        *(f"Reads {file} (SHA-256 {found[:12]}...)" for file, found in document["files"].items()),
        _speed(document),
        f"Checkpoints: {bytes_text(document['checkpoint_bytes'])}{month}",
        *_step_times(document),
    ]


def _speed(document: dict[str, Any]) -> str:
    """The source of the speeds."""
    source = f"config/hardware.yaml ({document['hardware']})"
    if not document["measured_runs"]:
        return f"Speed: {source}; finished runs of this machine will correct it"
    runs = count(document["measured_runs"], "finished run")
    return f"Speed: {runs} of this machine took {document['measured_factor']:.2g} times what {source} says"


def _step_times(document: dict[str, Any]) -> list[str]:
    """On a TPU: the source of the step times."""
    if not document["slices"]:
        return []
    rows = [row for item in document["experiments"] for row in item["runs"]]
    compiled = sum(row["step_time"] == "compiled estimate" for row in rows)
    advice = "" if compiled == len(rows) else " (`python -m trm tpu-check` compiles them)"
    return [f"Step time: compiled estimate for {compiled} of {len(rows)} runs, FLOPs for the others{advice}"]


def _budget_lines(budget: dict[str, Any], head: str) -> list[str]:
    lines = [
        f"{head}; a shared run is paid once",
        f"{'':>4}{'experiment':<24}{'device time':>12}{'left':>10}",
    ]
    place = 0
    for row in budget["rows"]:
        place += row["bought"]
        mark = f"{place:>3} " if row["bought"] else "  - "
        note = "" if row["bought"] else f"  over budget by {device_text(row['device_hours'] - row['left'])}"
        lines.append(
            f"{mark}{row['experiment']:<24}{device_text(row['device_hours']):>12}{device_text(row['left']):>10}{note}"
        )
    return lines


def announce(project: Project, snakemake: Any, failed: bool) -> None:
    """Print the plan at the end of a dry run: of the experiments that its targets name, else of those selected; or the
    nearest name where a target is unknown.

    Args:
        snakemake: Snakemake's `workflow` object of the Snakefile, after the dry run.
        failed: the dry run ended with an error, below which a plan would hide it.
    """
    if snakemake.dag_settings is None:  # it ended before
        return
    if getattr(snakemake, "_dag", None) and len(snakemake.dag):
        snakemake.dag.print_reasons()
    targets, rules = snakemake.dag_settings.targets, [rule.name for rule in snakemake.rules]
    for target in targets:
        if target not in rules and "/" not in target and not Path(target).exists():
            print(f"no experiment {target!r}{nearest(target, project.selection.targets)}", file=sys.stderr)
            return
    if failed:
        return
    names = [name for name in project.study.experiments if name in targets]
    shown = document(
        project, budget=project.settings.budget_hours, names=names or None, point=project.settings.point
    )
    print(f"\n{text(shown)}", file=sys.stderr)


def report_rows(project: Project, estimates: Estimates) -> tuple[str, list[list[str]]]:
    """The cost of the whole study for the report.

    Returns:
        A sentence, and rows: experiment, runs, device-hours, sum, whether the budget (`budget_hours`) buys it.
    """
    names = [name for name, experiment in project.study.experiments.items() if not experiment.skip]
    plan = document(project, names=names, estimates=estimates)
    total = sum(row["device_hours"] for item in plan["experiments"] for row in item["runs"])
    wanted = project.settings.budget_hours
    budget = buys(plan["experiments"], wanted or total * 1.001, todo=False)
    rows, spent = [], 0.0
    for item, row in zip(plan["experiments"], budget["rows"]):
        spent += row["device_hours"] * row["bought"]
        state = ("bought" if row["bought"] else "over budget") if wanted else ""
        rows.append(
            [
                item["experiment"],
                str(len(item["runs"])),
                device_text(row["device_hours"]),
                device_text(spent),
                state,
            ]
        )
    text = (
        f"The whole study at scale {project.study.scale_name} is planned to take {device_text(total)} of "
        f"{plan['device']} time; a run that several experiments share is counted at the first of them."
    )
    if wanted:
        text += f" {wanted:g} device-hours buy {len(budget['bought'])} of {len(rows)} experiments."
    return text, rows
