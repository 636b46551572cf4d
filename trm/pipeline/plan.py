"""The plan of a study: every run's cost, what is done already, totals, and what a budget buys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trm.pipeline.estimates import Estimates
from trm.pipeline.workflow import Workflow
from trm.study.plan import bytes_text, flops_text, seconds_text

GCS_USD_PER_GB_MONTH = 0.020
"""List price of standard storage in a single region; for the plan's total only."""


def document(workflow: Workflow, jobs: int | None = None, budget: float | None = None) -> dict[str, Any]:
    """The plan as plain data.

    A run that several experiments share is counted at the first of them. `todo_*` leaves out runs whose results exist.
    """
    estimates = Estimates(workflow)
    seen: set[str] = set()
    experiments = []
    for name in workflow.selected:
        rows = []
        for point in workflow.study.experiment(name).points:
            for run in point.runs:
                if run.name in seen:
                    continue
                seen.add(run.name)
                cost = estimates.of(run.name)
                rows.append(
                    {
                        "run": run.name,
                        "point": point.label,
                        "seed": run.config.seed,
                        "done": all(Path(file).exists() for file in workflow.run_outputs(run.name)),
                        "parameters": cost.parameters,
                        "steps": cost.steps,
                        "flops": cost.flops,
                        "seconds": cost.seconds,
                        "device_hours": cost.device_hours,
                        "usd": cost.usd,
                        "checkpoint_bytes": cost.checkpoint_bytes,
                        "memory_bytes": cost.memory_bytes,
                    }
                )
        todo = [row for row in rows if not row["done"]]
        shared = sum(len(point.runs) for point in workflow.study.experiment(name).points) - len(rows)
        experiments.append(
            {
                "experiment": name,
                "points": len(workflow.study.experiment(name).points),
                "shared_runs": shared,
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
    kept *= workflow.study.scale.runtime.keep_checkpoints + 1
    result: dict[str, Any] = {
        "study": workflow.study.name,
        "scale": workflow.scale,
        "device": estimates.hardware.device,
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


def buys(experiments: list[dict[str, Any]], budget: float) -> dict[str, Any]:
    """Which experiments a number of device-hours pays for, in the study's order; a dearer one is passed over."""
    left, bought, passed = budget, [], []
    for item in experiments:
        if item["todo_device_hours"] <= left:
            left -= item["todo_device_hours"]
            bought.append(item["experiment"])
        else:
            passed.append(item["experiment"])
    return {"device_hours": budget, "bought": bought, "passed_over": passed, "left": left}


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
            f"{item['todo_device_hours']:>10.3g}{item['todo_usd']:>9.2f}"
        )
        if runs:
            for row in item["runs"]:
                state = "done " if row["done"] else "to do"
                lines.append(
                    f"  {state} {row['run']}: {row['parameters']:,} parameters, {row['steps']:,} steps, "
                    f"{flops_text(row['flops'])}, {seconds_text(row['seconds'])}, "
                    f"{bytes_text(row['memory_bytes'])} of memory"
                )
    lines += [
        "",
        f"All of it: {seconds_text(document['todo_seconds'])} of jobs, {document['todo_device_hours']:.3g} "
        f"{document['device']} hours, ${document['todo_usd']:.2f}; about {seconds_text(document['wall_seconds'])} "
        f"at {document['jobs']} jobs at once",
        f"Checkpoints: {bytes_text(document['checkpoint_bytes'])}"
        + (
            f" (${document['storage_usd_per_month']:.2f} a month in a bucket)" if document["todo_usd"] else ""
        ),
    ]
    if "budget" in document:
        budget = document["budget"]
        lines.append(
            f"{budget['device_hours']:g} device-hours buy {', '.join(budget['bought']) or 'nothing'}"
            + (f"; too dear then: {', '.join(budget['passed_over'])}" if budget["passed_over"] else "")
            + f"; {budget['left']:.3g} are left"
        )
    return "\n".join(lines)
