"""The plan of a study: every run's cost, what is done already, totals, and what a budget buys."""

import csv
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trm.pipeline.catalogue import REPORT, published, source_name
from trm.pipeline.estimates import Estimates
from trm.pipeline.project import Project
from trm.study.cost import Hardware
from trm.study.merge import nearest
from trm.study.text import bytes_text, count, device_text, flops_text, seconds_text

JOBS = Path(".snakemake/tpu/jobs.csv")
"""The executor plugin's records: a row for each job, with the chip-seconds of all its launches."""
MISSING = tuple(f"todo_{key}" for key in ("runs", "evaluations", "seconds", "device_hours", "flops", "usd"))
"""Sums over what does not exist yet."""


def document(project: Project, jobs: int | None = None, names: Iterable[str] | None = None) -> dict[str, Any]:
    """The plan of the experiments `names` (None: those selected) as plain data.

    A run or an evaluation that several experiments share is counted at the first of them. `todo_*` leaves out what
    exists. `wall_seconds` is never less than the longest chain of jobs: data, the slowest run, its evaluation, the
    drawing.
    """
    estimates = Estimates(project)
    machine, settings = estimates.hardware, project.settings
    counted: set[str] = set()
    names = list(project.selection.experiments if names is None else names)
    experiments = [_experiment(project, estimates, name, counted) for name in names]
    runs = [row for item in experiments for row in item["runs"]]
    prepared = _preparation(project, estimates, [row["run"] for row in runs])
    drawn = 0 if settings.point else _missing_drawings(project, names)
    total = {key: sum(item[key] for item in experiments) for key in MISSING}
    seconds = total["todo_seconds"] + sum(prepared.values()) + drawn * machine.start
    chain = max(prepared.values(), default=0.0)
    chain += max((row["seconds"] for row in runs if not row["done"]), default=0.0)
    chain += max((item["longest_evaluation"] for item in experiments), default=0.0)
    chain += min(drawn, 5) * machine.start  # table, fit, figure, its publication, report
    data = [project.runs[row["run"]].config.data for row in runs]
    result: dict[str, Any] = {
        "path": project.study.path,
        "study": project.study.name,
        "scale": project.study.scale_name,
        "device": machine.device,
        "jobs": jobs or machine.jobs,
        "experiments": experiments,
        **total,
        "files": {file: found for item in data for file, found in zip(item.files, item.sha256)},
        "preparation_seconds": sum(prepared.values()),
        "drawing_seconds": drawn * machine.start,
        "todo_seconds": seconds,
        "chain_seconds": chain,
        "wall_seconds": max(seconds / (jobs or machine.jobs), chain),
        "speed": _speed(project, estimates),
        "checkpoint_bytes": sum(row["checkpoint_bytes"] for row in runs)
        * (project.study.scale.runtime.keep_checkpoints + 1),
    }
    if so_far := _spent(estimates):
        result["spent"] = so_far
    if machine.slices:
        result |= {
            "pod_hours": result["wall_seconds"] / 3600,
            "price": _price_words(settings.pricing, machine),
        }
        result["compiled_runs"] = sum(row["compiled"] for row in runs)
    hours = [settings.budget_hours] if settings.budget_hours else []
    if settings.grant_days:
        hours.append(settings.grant_days * 24 * result["jobs"] * machine.devices)
    if hours:
        result["budget"] = affordable(_by_phase(project, experiments), min(hours))
        result["budget"]["phases"] = project.study.file.phases
    return result


def _experiment(project: Project, estimates: Estimates, name: str, counted: set[str]) -> dict[str, Any]:
    """One experiment; its runs and evaluations that are not `counted` yet."""
    experiment, point, machine = project.study.experiment(name), project.settings.point, estimates.hardware
    points = (experiment.point(point),) if point else experiment.points
    asked = {run.name: item.label for item in points for run in item.runs}
    rows = []
    for run in asked:
        if run not in counted:
            known = {"run": run, "point": asked[run], "seed": project.runs[run].config.seed}
            rows.append({**known, "done": run in project.done, **asdict(estimates.of(run))})
    evaluations = {
        evaluation: estimates.evaluation(evaluation)
        for item in points
        for evaluation in item.evaluations
        if evaluation not in counted and not project.place.exists(f"results/runs/{evaluation}")
    }
    counted.update(asked, evaluations)
    todo, evaluating = [row for row in rows if not row["done"]], sum(evaluations.values())
    hours = evaluating * machine.devices / 3600
    return {
        "experiment": name,
        "points": len(points),
        "shared_runs": len(asked) - len(rows),
        "asks": list(asked),
        "runs": rows,
        "evaluation_seconds": evaluating,
        "evaluation_device_hours": hours,
        "longest_evaluation": max(evaluations.values(), default=0.0),
        "todo_runs": len(todo),
        "todo_evaluations": len(evaluations),
        "todo_seconds": sum(row["seconds"] for row in todo) + evaluating,
        "todo_device_hours": sum(row["device_hours"] for row in todo) + hours,
        "todo_flops": sum(row["flops"] for row in todo),
        "todo_usd": sum(row["usd"] for row in todo) + hours * machine.usd_per_device_hour,
    }


def _price_words(pricing: str, machine: Hardware) -> str:
    if pricing == "grant":
        return "free under the grant"
    if pricing == "spot" and machine.usd_spot is None:
        return "on-demand prices: the spot price is lower, but unknown (usd_spot in config/hardware.yaml)"
    return f"{pricing} prices"


def _speed(project: Project, estimates: Estimates) -> str:
    """The speed of a device, and where it comes from."""
    device, speeds = estimates.hardware.device, estimates.speeds
    if not speeds:
        stated = f"{flops_text(estimates.hardware.flops_per_second)}/s a {device}"
        return f"{stated}, from config/hardware.yaml ({project.study.scale.hardware}) until a run here is finished"
    runs = len(estimates.measured)
    source = (
        f"{count(runs, 'finished run')} of this machine had" if runs else "set-up measured on this machine"
    )
    rates = sorted(speed.flops / speed.seconds for speed in speeds)
    texts = dict.fromkeys(f"{flops_text(rate)}/s" for rate in (rates[0], rates[-1]))
    by_width = " by mixer and width" if len(texts) > 1 else ""
    return f"{' to '.join(texts)} a {device}{by_width}, as {source}"


def _spent(estimates: Estimates) -> dict[str, Any]:
    """Jobs so far, and what their devices cost: on a pod what each job held, lost launches included; elsewhere the time
    of finished runs."""
    used = [run.setup * run.devices + run.speed.seconds for run in estimates.finished]
    with suppress(OSError), open(JOBS, newline="", encoding="utf-8") as file:
        used = [float(row["chip_seconds"]) for row in csv.DictReader(file) if row.get("chip_seconds")]
    hours = sum(used) / 3600
    price = hours * estimates.hardware.usd_per_device_hour
    return {"jobs": len(used), "device_hours": hours, "usd": price} if used else {}


def _by_phase(project: Project, experiments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The experiments in the order of the study's phases; those of no phase come last."""
    phases = [*project.study.file.phases, ""]
    return sorted(
        experiments,
        key=lambda item: phases.index(project.study.experiment(item["experiment"]).definition.phase),
    )


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


def _missing_drawings(project: Project, experiments: list[str]) -> int:
    """The number of missing tables, fits, figures and the report of some experiments, a job each."""
    catalogue, wanted = project.catalogue, {REPORT} if experiments else set()
    for name in experiments:
        wanted.add(catalogue.table_file(name))
        for figure in catalogue.figures_of(name):
            wanted |= {*(fit.file for fit in figure.fits), figure.files[0], published(figure.stem)}
    return sum(not project.place.exists(path) for path in wanted)


def affordable(experiments: list[dict[str, Any]], budget: float) -> dict[str, Any]:
    """Which experiments a number of device-hours pays for, in this order; one that costs more than is left is passed
    over. A run that is not done is paid for once, by the first experiment that is bought.
    """
    runs = (row for item in experiments for row in item["runs"])
    costs = {row["run"]: 0.0 if row["done"] else row["device_hours"] for row in runs}
    left, paid, rows = budget, set(), []
    for item in experiments:
        price = sum(costs[run] for run in item["asks"] if run not in paid)
        price += item["evaluation_device_hours"]
        if bought := price <= left:
            left -= price
            paid.update(item["asks"])
        rows.append({"experiment": item["experiment"], "device_hours": price, "bought": bought, "left": left})
    return {"device_hours": budget, "rows": rows, "left": left}


def text(document: dict[str, Any], runs: bool = False) -> str:
    todo = count(document["todo_runs"], "run")
    lines = [
        f"{document['path']} (study {document['study']} at scale {document['scale']}): {todo} to train",
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
        lines += ["", *_budget_lines(document["budget"], document["device"])]
    return "\n".join(lines)


def _run_line(row: dict[str, Any]) -> str:
    state = "done " if row["done"] else "to do"
    return (
        f"  {state} {row['run']}: {row['parameters']:,} parameters, {row['steps']:,} steps, "
        f"{flops_text(row['flops'])}, {seconds_text(row['seconds'])}, {bytes_text(row['memory_bytes'])} of memory"
        + (f" in {row['micro_batches']} micro-batches" if row["micro_batches"] > 1 else "")
    )


def _totals(document: dict[str, Any]) -> list[str]:
    device = _priced(document["todo_device_hours"], document["device"], document["todo_usd"])
    parts = f"{seconds_text(document['preparation_seconds'])} for data and "
    parts += f"{seconds_text(document['drawing_seconds'])} for tables and figures"
    lines = [
        f"Total: {seconds_text(document['todo_seconds'])} of jobs ({device}), including {parts}",
        f"About {seconds_text(document['wall_seconds'])} with {count(document['jobs'], 'job')} at once; "
        f"the longest chain of jobs takes {seconds_text(document['chain_seconds'])}",
    ]
    if "pod_hours" in document:  # a pod costs as long as it exists
        lines.append(f"{device_text(document['pod_hours'])} of the pod; {document['price']}")
    if so_far := document.get("spent"):
        used = _priced(so_far["device_hours"], document["device"], so_far["usd"])
        lines.append(f"Spent so far: {used} by {count(so_far['jobs'], 'job')}")
    lines += [f"Reads {file} (SHA-256 {found[:12]}...)" for file, found in document["files"].items()]
    lines += [f"Speed: {document['speed']}", f"Checkpoints: {bytes_text(document['checkpoint_bytes'])}"]
    if "compiled_runs" in document:
        number, compiled = (
            sum(len(item["runs"]) for item in document["experiments"]),
            document["compiled_runs"],
        )
        advice = "" if compiled == number else " (`python -m trm tpu-check` compiles them)"
        lines.append(
            f"Step time: compiled estimate for {compiled} of {number} runs, FLOPs for the others{advice}"
        )
    return lines


def _priced(hours: float, device: str, usd: float) -> str:
    return f"{device_text(hours)} of {device} time" + (f", ${usd:,.2f}" if usd else "")


def _budget_lines(budget: dict[str, Any], device: str) -> list[str]:
    order = f"by phase ({', '.join(budget['phases'])})" if budget["phases"] else "in the study's order"
    lines = [
        f"What {device_text(budget['device_hours'])} of {device} time buys, {order}; a shared run is paid once",
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
    print(f"\n{text(document(project, names=names or None))}", file=sys.stderr)
