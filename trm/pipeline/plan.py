"""The plan: what the jobs of Snakemake's own graph cost, in one table at the end of a dry run."""

import csv
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trm.errors import UserError
from trm.pipeline.estimates import DRAWING, Estimates, Job
from trm.pipeline.project import Project
from trm.pipeline.reasons import NOUNS, reason_lines
from trm.pipeline.settings import Settings
from trm.storage.mirror import KEPT
from trm.study.cost import Hardware, read_hardware
from trm.study.horizon import average_remark
from trm.study.slices import parse_slice
from trm.study.text import bytes_text, count, device_text, flops_text, seconds_text

JOBS = Path(".snakemake/tpu/jobs.csv")
"""The executor plugin's records: a row for each job, with its start and its end."""
SUMS = (
    "jobs", "runs", "flops", "training_seconds", "evaluation_seconds", "seconds", "device_hours", "usd",
)  # fmt: skip
"""Columns of the table; the last row is their sum."""
KINDS = "preflight", "source", "dataset"
"""Rules whose jobs end before those of the next rule start."""
IDLE_SECONDS = 1800.0
"""A pod outlives its last job by so much (`tpu-idle-delete` of profiles/tpu), and is found again until then."""
OTHERS = "data and preflight", "tables and figures"
"""Rows of the jobs that belong to no experiment."""


def document(project: Project, jobs: Collection[Job], at_once: int, asked: Collection[str]) -> dict[str, Any]:
    """The plan as plain data. `wall_seconds` is never less than a chain of the slowest jobs of each kind. A pod costs
    what its hours cost, busy or not, and the USD of the rows are shares of that.

    Args:
        jobs: what is priced.
        at_once: jobs that have room at the same time.
        asked: experiments at which the jobs that several share are counted first.
    """
    estimates, owners = Estimates(project), owners_of(project, asked)
    machine, settings = estimates.hardware, project.settings
    names = list(dict.fromkeys([*owners.values(), *OTHERS]))
    rows: dict[str, dict[str, Any]] = {name: {"name": name} | dict.fromkeys(SUMS, 0) for name in names}
    runs, slowest, resumed = [], dict[str, float](), []
    for job in jobs:
        cost = estimates.left(job)
        row = rows[owners.get(job, OTHERS[job.rule in DRAWING])]
        kind = {"train": "training_seconds", "evaluate": "evaluation_seconds"}.get(job.rule)
        columns = dict(zip(("seconds", "device_hours", "usd", "flops"), cost), jobs=1)
        for key, value in (columns | ({kind: cost.seconds} if kind else {})).items():
            row[key] += value
        if job.rule == "train":
            row["runs"] += 1
            if (done := estimates.cost(job).seconds - cost.seconds) > 0:
                resumed.append(done)
            runs.append({"run": job.name, "experiment": row["name"], **asdict(estimates.of(job.name))})
        slowest[job.rule] = max(slowest.get(job.rule, 0.0), cost.seconds)
    table = [row for row in rows.values() if row["jobs"]]
    chain = sum(slowest.values())
    result: dict[str, Any] = {
        "path": project.study.path,
        "study": project.study.file.name,
        "scale": project.study.scale_name,
        "device": machine.device,
        "hours": "chip hours" if machine.slices else "device time",
        "at_once": at_once,
        "rows": table,
        "total": {"name": "total"} | {key: sum(row[key] for row in table) for key in SUMS},
        "runs": runs,
        "chain_seconds": chain,
        "wall_seconds": max(packed(estimates, jobs, at_once), chain),
        "files": _files_read(project, runs),
        "average": average_remark([project.runs[row["run"]].config.training for row in runs]),
        "random_splits": _random_splits(project, runs),
        "speed": _speed(project, estimates),
        "checkpoint_bytes": sum(row["checkpoint_bytes"] * (KEPT + 1) for row in runs),
    }
    if resumed:
        result["resumed"] = {"runs": len(resumed), "seconds": sum(resumed)}
    if so_far := _spent(estimates, settings):
        result["spent"] = so_far
    if machine.slices:
        hours, busy = result["wall_seconds"] / 3600, result["total"]["usd"]
        result |= {"pod_hours": hours, "pod_usd": estimates.pod_usd, "pod": _pod_words(settings, machine)}
        result["price"] = _price_words(settings.pricing, machine)
        for row in (*table, result["total"]) if busy else ():
            row["usd"] *= hours * estimates.pod_usd / busy
    budgets = [settings.budget_hours] if settings.budget_hours else []
    if settings.grant_days:
        budgets.append(settings.grant_days * 24 * at_once * machine.devices)
    if budgets:
        result["budget"] = affordable(_prices(project, estimates, jobs, asked), min(budgets))
        result["budget"] |= {"phases": project.study.file.phases, "hours": result["hours"]}
    return result


def packed(estimates: Estimates, jobs: Iterable[Job], at_once: int) -> float:
    """Seconds until the last job ends, where `at_once` jobs of one host have room and each job takes the first hosts
    that are free. Kinds of jobs follow one another, but evaluations wait for their own training only; jobs of a whole
    slice come after those of one host, which they would wait for. Drawing needs no host."""
    width = estimates.pod_hosts if estimates.pod_hosts > 1 else 1
    slices = [[0.0] * min(width, at_once) for _ in range(max(1, at_once // width))]
    kinds: dict[str, list[tuple[Job, float]]] = {}
    for job in jobs:
        kind = "train" if job.rule == "evaluate" else "drawing" if job.rule in DRAWING else job.rule
        kinds.setdefault(kind, []).append((job, estimates.left(job).seconds))
    drawing = kinds.pop("drawing", [])
    trained: dict[str, float] = {}
    for kind in sorted(kinds, key=[*KINDS, "train"].index):
        whole = {job for job, _ in kinds[kind] if estimates.hosts_of(job) > 1}
        order = {("train", False): 0, ("train", True): 1, ("evaluate", False): 2}
        for job, seconds in sorted(
            kinds[kind], key=lambda item: order.get((item[0].rule, item[0] in whole), 0)
        ):
            ready = trained.get(job.name.split("/")[0], 0.0) if job.rule == "evaluate" else 0.0
            if job in whole:
                hosts = min(slices, key=max)
                end = max(hosts) + seconds
                hosts[:] = [end] * len(hosts)
            else:
                hosts = min(slices, key=min)
                place = hosts.index(min(hosts))
                end = hosts[place] = max(hosts[place], ready) + seconds
            if job.rule == "train":
                trained[job.name] = end
        if kind != "train":  # what follows needs it
            slices = [[max(map(max, slices))] * len(hosts) for hosts in slices]
    shared = sum(seconds for _, seconds in drawing) / at_once
    return max(map(max, slices)) + max(shared, max((seconds for _, seconds in drawing), default=0.0))


def owners_of(project: Project, asked: Iterable[str]) -> dict[Job, str]:
    """Runs and evaluations -> the first experiment that needs them; those that are `asked` for come first."""
    owners: dict[Job, str] = {}
    for name in dict.fromkeys([*asked, *project.study.experiments]):
        for job in measuring(project, name):
            owners.setdefault(job, name)
    return owners


def measuring(project: Project, experiment: str) -> Iterator[Job]:
    """Trainings and evaluations of an experiment."""
    for point in project.study.experiment(experiment).points:
        yield from (Job("train", run.name) for run in point.runs)
        yield from (Job("evaluate", name) for name in point.evaluations)


def _files_read(project: Project, runs: list[dict[str, Any]]) -> dict[str, str]:
    """Files of the user that the data of `runs` are cut from, with their SHA-256."""
    data = {project.runs[row["run"]].config.data for row in runs}
    return {file: found for item in data for file, found in zip(item.files, item.sha256)}


def _random_splits(project: Project, runs: list[dict[str, Any]]) -> list[str]:
    """The first file of each ARC data set of which no file says whether its tasks are for training or for tests."""
    data = {project.runs[row["run"]].config.data for row in runs}
    return sorted(
        item.files[0] for item in data if item.names and not any("/" in name for name in item.names)
    )


def _pod_words(settings: Settings, machine: Hardware) -> str:
    """`2 slices v4-32`."""
    if not settings.tpu_slice:
        return machine.slices[-1]
    return (
        settings.tpu_slice
        if settings.tpu_slices == 1
        else f"{settings.tpu_slices} slices {settings.tpu_slice}"
    )


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


def _spent(estimates: Estimates, settings: Settings) -> dict[str, Any]:
    """Jobs so far and what they cost: on a pod the time for which it existed for them, with its idle half hours, at
    today's price of a chip; elsewhere the time of finished runs."""
    machine = estimates.hardware
    used = [run.setup * run.devices + run.speed.seconds for run in estimates.finished]
    jobs, hours, usd = len(used), sum(used) / 3600, sum(used) / 3600 * machine.usd_per_device_hour
    if machine.slices:
        spans = _spans(settings.tpu_slice, machine.hosts * machine.devices)
        jobs = sum(map(len, spans.values()))
        hours = sum(_together(sorted(found)) / 3600 * chips for chips, found in spans.items())
        usd = hours * machine.usd_per_device_hour
    return {"jobs": jobs, "device_hours": hours, "usd": usd} if jobs else {}


def _spans(today: str, chips: int) -> dict[int, list[tuple[float, float]]]:
    """Start and end of each job on a pod, seconds since 1970, by the pod's chips: today's pod has so many."""
    spans: dict[int, list[tuple[float, float]]] = {}
    with suppress(OSError), open(JOBS, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            with suppress(KeyError, TypeError, ValueError, UserError):
                if 0 < float(row["started"]) <= float(row["ended"]):
                    other = row.get("accelerator_type") not in (None, "", today)
                    size = parse_slice(row["accelerator_type"]).chips if other else chips
                    spans.setdefault(size, []).append((float(row["started"]), float(row["ended"])))
    return spans


def _together(spans: list[tuple[float, float]]) -> float:
    """Seconds for which a pod existed that these jobs, in order of their starts, ran on."""
    seconds, until = 0.0, float("-inf")
    for start, end in spans:
        if end + IDLE_SECONDS > until:
            seconds += end + IDLE_SECONDS - max(start, until)
            until = end + IDLE_SECONDS
    return seconds


def _prices(
    project: Project, estimates: Estimates, jobs: Iterable[Job], asked: Iterable[str]
) -> dict[str, dict[Job, float]]:
    """Device-hours of the trainings and evaluations among `jobs` that each experiment needs, in the order of the
    study's phases; experiments of no phase come last."""
    phases = [*project.study.file.phases, ""]
    hours = {job: estimates.left(job).device_hours for job in jobs}

    def phase(name: str) -> int:
        return phases.index(project.study.experiment(name).definition.phase)

    return {
        name: {job: hours[job] for job in measuring(project, name) if job in hours}
        for name in sorted(asked, key=phase)
    }


def affordable(prices: dict[str, dict[Job, float]], budget: float) -> dict[str, Any]:
    """Which experiments a number of device-hours pays for, in this order; one that costs more than is left is passed
    over. A job is paid for once, by the first experiment that is bought."""
    left, paid, rows = budget, set[Job](), []
    for name, hours in prices.items():
        price = sum(hours[job] for job in hours if job not in paid)
        if bought := price <= left:
            left -= price
            paid.update(hours)
        rows.append({"experiment": name, "device_hours": price, "bought": bought, "left": left})
    return {"device_hours": budget, "rows": rows, "left": left}


def text(document: dict[str, Any]) -> str:
    """The plan for people."""
    total, device = document["total"], document["device"]
    lines = [
        f"{document['path']} (study {document['study']} at scale {document['scale']}): "
        f"{count(total['runs'], 'run')} to train",
        "",
        f"{'':<24}{'jobs':>6}{'runs':>6}{'FLOPs':>13}{'training':>10}{'evaluation':>12}{'all jobs':>10}"
        f"{document['hours']:>12}{'USD':>11}",
    ]
    lines += [
        *map(_row_line, document["rows"]),
        _row_line(total),
        "",
        f"About {seconds_text(document['wall_seconds'])} with {count(document['at_once'], 'job')} at once; the slowest "
        f"chain of jobs takes {seconds_text(document['chain_seconds'])}",
    ]
    if "pod_hours" in document:  # a pod costs as long as it exists
        usd, hours = document["pod_usd"], document["pod_hours"]
        times = f" at ${usd:,.2f} an hour = ${usd * hours:,.2f}" if usd else ""
        lines.append(
            f"{device_text(hours)} of the pod ({document['pod']}), busy or not{times}; {document['price']}"
        )
        if "hint" in document:
            lines.append(document["hint"])
    if resumed := document.get("resumed"):
        lines.append(
            f"{count(resumed['runs'], 'run')} of these will go on from a checkpoint: "
            f"{seconds_text(resumed['seconds'])} of training are done, and not counted above"
        )
    if so_far := document.get("spent"):
        used = _priced(so_far["device_hours"], device, so_far["usd"])
        least = "at least " if "pod_hours" in document else ""
        lines.append(f"Spent so far: {least}{used} by {count(so_far['jobs'], 'job')}")
    lines += [f"Reads {file} (SHA-256 {found[:12]}...)" for file, found in document["files"].items()]
    lines += [
        f"Tasks of {file} and the files with it are split at random: no name says training or evaluation"
        for file in document["random_splits"]
    ]
    lines.append(f"Speed: {document['speed']}")
    lines += filter(None, [document["average"]])
    if total["runs"]:
        lines.append(f"Checkpoints: {bytes_text(document['checkpoint_bytes'])}")
    if targets := document.get("targets"):
        lines.append(f"Snakemake's total includes {count(targets, 'target')}: names for groups of jobs")
    if "budget" in document:
        lines += ["", *_budget_lines(document["budget"], device)]
    return "\n".join(lines)


def _row_line(row: dict[str, Any]) -> str:
    training, evaluation, seconds = (
        seconds_text(row[key]) if row[key] else "-"
        for key in ("training_seconds", "evaluation_seconds", "seconds")
    )
    return (
        f"{row['name']:<24}{row['jobs']:>6}{row['runs'] or '-':>6}"
        f"{flops_text(row['flops']) if row['flops'] else '-':>13}{training:>10}{evaluation:>12}{seconds:>10}"
        f"{device_text(row['device_hours']) if row['device_hours'] else '-':>12}"
        f"{format(row['usd'], ',.2f') if row['usd'] else '-':>11}"
    )


def _priced(hours: float, device: str, usd: float) -> str:
    return f"{device_text(hours)} of {device} time" + (f", ${usd:,.2f}" if usd else "")


def _budget_lines(budget: dict[str, Any], device: str) -> list[str]:
    order = f"by phase ({', '.join(budget['phases'])})" if budget["phases"] else "in the study's order"
    lines = [
        f"What {device_text(budget['device_hours'])} of {device} time buys, {order}; a shared run is paid once",
        f"{'':>4}{'experiment':<24}{budget['hours']:>12}{'left':>10}",
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


def job_of(job: Any) -> Job | None:
    """A job of Snakemake's graph; None for a target, which runs nothing."""
    if job.rule.shellcmd is None:
        return None
    names = [str(value) for value in job.wildcards]
    if job.rule.name == "evaluate":
        return Job("evaluate", "{}/evaluation-{}.json".format(*names))
    return Job(job.rule.name, *names[:1])


def at_once(snakemake: Any, project: Project) -> int:
    """Jobs of one worker or host that the profile and the command line let run at the same time. `snakemake`: its
    `workflow` object."""
    cores, jobs = (snakemake.global_resources[name].value for name in ("_cores", "_nodes"))
    machine = read_hardware(project.settings.hardware, project.study.scale.hardware)
    if machine.slices and "tpu_hosts" not in snakemake.global_resources:  # without a profile for it
        return machine.hosts
    settings, limits = project.settings, [jobs] if jobs else []
    if snakemake.local_exec and not (jobs and cores == 1):  # a dry run with `jobs` alone has one core
        limits.append(cores // project.study.scale.threads)
    for resource, each in (("gpu", settings.gpus), ("tpu_hosts", 1)):
        if resource in snakemake.global_resources and each:
            limits.append(snakemake.global_resources[resource].value // each)
    return max(1, min(limits, default=1))


def in_order(jobs: dict[Any, Job], owners: dict[Job, str]) -> dict[Any, Job]:
    """Jobs by rule, experiment and name: Snakemake's order differs between calls."""
    rules, names = [*NOUNS], [*dict.fromkeys(owners.values()), ""]

    def place(item: tuple[Any, Job]) -> tuple[int, int, str]:
        job = item[1]
        return rules.index(job.rule), names.index(owners.get(job, "")), job.name

    return dict(sorted(jobs.items(), key=place))


def announce(project: Project, snakemake: Any, failed: bool) -> None:
    """Print the plan of the jobs that Snakemake would run, and why it would run them, at the end of a dry run.

    Args:
        snakemake: Snakemake's `workflow` object of the Snakefile, after the dry run.
        failed: the dry run ended with an error, below which a plan would hide it.
    """
    if failed or not getattr(snakemake, "_dag", None):
        return
    dag = snakemake.dag
    found = {job: known for job in dag.needrun_jobs(exclude_finished=False) if (known := job_of(job))}
    if not found:  # Snakemake has said so
        return
    tables = [job.wildcards.table for job in dag.jobs if job.rule.name == "table"]
    shown = {project.catalogue.tables[table] for table in tables} or set(project.selection.experiments)
    asked = [name for name in project.study.experiments if name in shown]
    owners = owners_of(project, asked)
    found = in_order(found, owners)
    planned = document(project, found.values(), at_once(snakemake, project), asked)
    if "tpu_hosts" not in snakemake.global_resources:
        planned["hint"] = "Without --profile profiles/tpu these jobs would run on this machine"
    planned["targets"] = sum(job_of(job) is None for job in dag.needrun_jobs(exclude_finished=False))
    if project.files.unread:
        print(
            f"\nPlanned as if the bucket were empty. A real run needs it: {project.files.unread}",
            file=sys.stderr,
        )
    reasons = reason_lines(project, dag, found, owners)
    print(f"\n{text(planned)}\n", *reasons, sep="\n", file=sys.stderr)
