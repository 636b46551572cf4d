"""The plan of a study: every run's cost, what is done already, totals, and what a budget buys."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trm.pipeline.estimates import Estimates
from trm.pipeline.project import Project
from trm.study.cost import bytes_text, flops_text, seconds_text
from trm.study.merge import nearest

GCS_USD_PER_GB_MONTH = 0.020
"""List price of standard storage in a single region; for the plan's total only."""


def document(
    project: Project,
    jobs: int | None = None,
    budget: float | None = None,
    names: Iterable[str] | None = None,
) -> dict[str, Any]:
    """The plan of the experiments `names` (None: those selected) as plain data.

    A run that several experiments share is counted at the first of them. `todo_*` leaves out runs whose results exist.
    """
    estimates = Estimates(project)
    seen: set[str] = set()
    experiments = []
    for name in project.selection.experiments if names is None else names:
        points = project.study.experiment(name).points
        asked = list(dict.fromkeys(run.name for point in points for run in point.runs))
        rows = []
        for point in points:
            for run in point.runs:
                if run.name not in seen:
                    seen.add(run.name)
                    rows.append(_row(project, estimates, point.label, run.name))
        todo = [row for row in rows if not row["done"]]
        experiments.append(
            {
                "experiment": name,
                "points": len(points),
                "shared_runs": sum(len(point.runs) for point in points) - len(rows),
                "asks": asked,
                "runs": rows,
                "todo_runs": len(todo),
                "todo_seconds": sum(row["seconds"] for row in todo),
                "todo_device_hours": sum(row["device_hours"] for row in todo),
                "todo_flops": sum(row["flops"] for row in todo),
                "todo_usd": sum(row["usd"] for row in todo),
            }
        )
    at_once = jobs or estimates.hardware.jobs
    seconds = sum(item["todo_seconds"] for item in experiments)
    kept = sum(row["checkpoint_bytes"] for item in experiments for row in item["runs"])
    kept *= project.study.scale.runtime.keep_checkpoints + 1
    result: dict[str, Any] = {
        "study": project.study.name,
        "scale": project.study.scale_name,
        "device": estimates.hardware.device,
        "slices": list(estimates.hardware.slices),
        "jobs": at_once,
        "experiments": experiments,
        "todo_runs": sum(item["todo_runs"] for item in experiments),
        "todo_seconds": seconds,
        "wall_seconds": seconds / at_once,
        "todo_device_hours": sum(item["todo_device_hours"] for item in experiments),
        "todo_usd": sum(item["todo_usd"] for item in experiments),
        "checkpoint_bytes": kept,
        "storage_usd_per_month": kept / 1e9 * GCS_USD_PER_GB_MONTH,
    }
    if budget is not None:
        result["budget"] = buys(experiments, budget)
    return result


def _row(project: Project, estimates: Estimates, label: str, run: str) -> dict[str, Any]:
    cost = estimates.of(run)
    return {
        "run": run,
        "point": label,
        "seed": project.runs[run].config.seed,
        "done": run in project.done,
        "parameters": cost.parameters,
        "steps": cost.steps,
        "flops": cost.flops,
        "seconds": cost.seconds,
        "device_hours": cost.device_hours,
        "usd": cost.usd,
        "checkpoint_bytes": cost.checkpoint_bytes,
        "memory_bytes": cost.memory_bytes,
        "step_time": "compiled estimate" if cost.compiled else "FLOPs",
    }


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
    lines = [
        f"Study {document['study']} at scale {document['scale']}: {document['todo_runs']} runs to train",
        "",
        f"{'experiment':<22}{'points':>7}{'runs':>6}{'to do':>6}{'shared':>7}{'FLOPs':>13}{'time':>10}"
        f"{'device-h':>10}{'USD':>9}",
    ]
    for item in document["experiments"]:
        lines.append(
            f"{item['experiment']:<22}{item['points']:>7}{len(item['runs']):>6}{item['todo_runs']:>6}"
            f"{item['shared_runs']:>7}{flops_text(item['todo_flops']):>13}{seconds_text(item['todo_seconds']):>10}"
            f"{_hours(item['todo_device_hours']):>10}{item['todo_usd']:>9.2f}"
        )
        if runs:
            lines += [_run_line(row) for row in item["runs"]]
    lines += ["", *_totals(document)]
    if "budget" in document:
        lines += ["", *_budget_lines(document["budget"])]
    return "\n".join(lines)


def _run_line(row: dict[str, Any]) -> str:
    state = "done " if row["done"] else "to do"
    return (
        f"  {state} {row['run']}: {row['parameters']:,} parameters, {row['steps']:,} steps, "
        f"{flops_text(row['flops'])}, {seconds_text(row['seconds'])}, {bytes_text(row['memory_bytes'])} of memory"
    )


def _totals(document: dict[str, Any]) -> list[str]:
    price = f", ${document['todo_usd']:.2f}" if document["todo_usd"] else ""
    month = f" (${document['storage_usd_per_month']:.2f} a month in a bucket)" if document["todo_usd"] else ""
    return [
        f"All of it: {seconds_text(document['todo_seconds'])} of jobs, {_hours(document['todo_device_hours'])} "
        f"{document['device']} hours{price}; about {seconds_text(document['wall_seconds'])} at {document['jobs']} "
        "jobs at once",
        f"Checkpoints: {bytes_text(document['checkpoint_bytes'])}{month}",
        *_step_times(document),
    ]


def _step_times(document: dict[str, Any]) -> list[str]:
    """On a TPU: where the step times are from."""
    if not document["slices"]:
        return []
    rows = [row for item in document["experiments"] for row in item["runs"]]
    compiled = sum(row["step_time"] == "compiled estimate" for row in rows)
    advice = "" if compiled == len(rows) else " (`python -m trm tpu-check` compiles them)"
    return [f"Step time: compiled estimate for {compiled} of {len(rows)} runs, FLOPs for the others{advice}"]


def _budget_lines(budget: dict[str, Any]) -> list[str]:
    lines = [
        f"What {budget['device_hours']:g} device-hours buy, in the study's order (a shared run is paid once)",
        f"{'':>4}{'experiment':<22}{'device-h':>10}{'left':>10}",
    ]
    place = 0
    for row in budget["rows"]:
        place += row["bought"]
        mark = f"{place:>3} " if row["bought"] else "  - "
        note = "" if row["bought"] else f"  too dear by {_hours(row['device_hours'] - row['left'])}"
        lines.append(
            f"{mark}{row['experiment']:<22}{_hours(row['device_hours']):>10}{_hours(row['left']):>10}{note}"
        )
    return lines


def _hours(count: float) -> str:
    return f"{count:,.0f}" if count >= 1000 else f"{count:.3g}"


def announce(project: Project, snakemake: Any) -> None:
    """Print the plan at the end of a dry run: of the experiments that its targets name, else of those selected; or the
    nearest name where a target is unknown.

    Args:
        snakemake: Snakemake's `workflow` object of the Snakefile, after the dry run.
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
    aliases = project.study.aliases
    named = {aliases.get(target, target) for target in targets} & project.study.experiments.keys()
    if any(project.study.experiments[name].skip for name in named):
        return  # Snakemake has said why
    names = [name for name in project.study.experiments if name in named] if named else None
    shown = document(project, budget=project.settings.budget_hours, names=names)
    print(f"\n{text(shown)}", file=sys.stderr)


def report_rows(project: Project) -> tuple[str, list[list[str]]]:
    """What the report says of the whole study's cost: a sentence, and rows (experiment, runs, device-hours, sum,
    whether the budget of `--config budget_hours=...` buys it)."""
    names = [name for name, experiment in project.study.experiments.items() if not experiment.skip]
    plan = document(project, names=names)
    total = sum(row["device_hours"] for item in plan["experiments"] for row in item["runs"])
    wanted = project.settings.budget_hours
    budget = buys(plan["experiments"], wanted or total * 1.001, todo=False)
    rows, spent = [], 0.0
    for item, row in zip(plan["experiments"], budget["rows"]):
        spent += row["device_hours"] * row["bought"]
        state = ("bought" if row["bought"] else "too dear") if wanted else ""
        rows.append(
            [item["experiment"], str(len(item["runs"])), _hours(row["device_hours"]), _hours(spent), state]
        )
    said = (
        f"The whole study at scale {project.study.scale_name} is planned at {_hours(total)} {plan['device']} hours, "
        "in this order; a run that several experiments share is counted at the first."
    )
    if wanted:
        said += f" {wanted:g} device-hours buy {len(budget['bought'])} of {len(rows)} experiments."
    return said, rows
