"""Files -> Report. What is missing becomes a sentence in red, never an exception: a report of what there is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from trm.analysis.labels import label
from trm.analysis.paper import REPORTED
from trm.analysis.report.contents import FigureBlock, FitBlock, Report, Section
from trm.analysis.report.contrasts import accuracy, matching, primary
from trm.analysis.report.criteria import criteria
from trm.analysis.sentences.comparisons import points
from trm.analysis.specs import ReportExperiment, ReportSpec
from trm.analysis.stats.intervals import mean
from trm.analysis.tables import Table, load
from trm.analysis.traces import puzzles
from trm.analysis.words import (
    count,
    duration,
    interval,
    listed,
    memory,
    number,
    percent,
    percents,
    value_name,
)
from trm.errors import UserError
from trm.io import read_json


def build(spec: ReportSpec) -> Report:
    """Read every file that the spec names.

    Returns:
        The report. Files that do not exist or do not parse are named in its problems.
    """
    tables: dict[str, Table] = {}
    fits: list[dict[str, Any]] = []
    sections = []
    for experiment in spec.experiments:
        section, table, found = _section(experiment)
        sections.append(section)
        fits += found
        if table is not None:
            tables[experiment.name] = table
    figures = [figure(path) for path in spec.figures]
    rows = primary(list(tables.values()))
    runs = {key: run for table in tables.values() for key, run in table.info["runs"].items()}
    failed = [f"{item.run}: {item.sentence}" for item in _failed(spec)]
    interactions = [
        item
        for section in sections
        for block in section.figures
        for item in block.numbers.get("interactions", [])
    ]
    problems = [f"{name}: {text}" for name, text in _problems(sections)]
    problems += [f"study figure {block.path.stem} is missing" for block in figures if block.png is None]
    traces = [trace for table in tables.values() for trace in table.info.get("traces", [])]
    unique = {(trace["run"], str(trace["question"])): trace for trace in traces}
    return Report(
        title=spec.title,
        study=spec.study,
        scale=spec.scale,
        intro=spec.intro,
        criteria=criteria(rows, runs, failed, fits, interactions),
        sections=sections,
        figures=figures,
        paper=paper(rows),
        cost=cost(sections, runs),
        problems=problems,
        puzzles=puzzles(list(unique.values())),
        rebuild=spec.rebuild,
        budget=spec.budget,
        budget_rows=_budget(spec),
        provenance=_provenance(list(tables.values()), runs),
    )


def _budget(spec: ReportSpec) -> list[list[str]]:
    """The plan's rows; without a budget its last column says nothing and is left out."""
    wide = any(row[-1] for row in spec.budget_rows)
    return [list(row if wide else row[:-1]) for row in spec.budget_rows]


def _failed(spec: ReportSpec) -> list[Any]:
    return list({item.run: item for experiment in spec.experiments for item in experiment.failed}.values())


def _problems(sections: Sequence[Section]) -> list[tuple[str, str]]:
    return [(section.name, text) for section in sections for text in section.problems]


def _section(spec: ReportExperiment) -> tuple[Section, Table | None, list[dict[str, Any]]]:
    problems: list[str] = []
    try:
        table = load(spec.table)
    except UserError as error:
        table = None
        problems.append(f"no results: {error}")
    fits = []
    for path in spec.fits:
        try:
            fits.append(read_json(path))
        except UserError as error:
            problems.append(f"fit missing: {error}")
    blocks = [figure(path) for path in spec.figures]
    problems += [f"figure {block.path.name} is missing" for block in blocks if block.png is None]
    problems += [
        f"run {item.run} failed: {item.sentence or 'see its log'} {item.log}".strip() for item in spec.failed
    ]
    if table is not None:
        problems += _table_problems(table)
    said = [block.answer for block in blocks if block.answer]
    runs = table.info["runs"] if table else {}
    section = Section(
        name=spec.name,
        aliases=spec.aliases,
        question=spec.question,
        hypothesis=spec.hypothesis,
        answer=said[0] if said else ("Not run." if table is None else "No figure answers it yet."),
        runs=len(runs),
        planned_runs=spec.planned_runs or (table.info.get("planned_runs", 0) if table else 0),
        hours=sum(run["device_seconds"] for run in runs.values()) / 3600 if runs else None,
        planned_hours=spec.planned_hours,
        figures=blocks,
        fits=[_fit_block(fit) for fit in fits],
        problems=problems,
        provenance=_provenance([table], runs) if table else [],
        rebuild=spec.rebuild,
    )
    if table is not None:
        section.columns, section.points = points_table(table)
    return section, table, fits


def _table_problems(table: Table) -> list[str]:
    missing = table.info.get("missing", [])
    found = []
    if missing:
        runs = sorted({item["run"] for item in missing})
        shown = listed(runs[:4]) + (f" and {len(runs) - 4} more" if len(runs) > 4 else "")
        found.append(f"{count(len(runs), 'run')} without complete results: {shown}")
    broken = [key for key, run in table.info["runs"].items() if run["broken"]]
    if broken:
        found.append(f"loss not finite in {listed(broken[:4])}")
    unfinished = [key for key, run in table.info["runs"].items() if run["outcome"] != "finished"]
    if unfinished:
        found.append(f"not finished: {listed(unfinished[:4])}")
    return found


def figure(path: str | Path) -> FigureBlock:
    """A figure's PNG and words; `png` None if a file is missing."""
    path = Path(path)
    try:
        facts = read_json(path.with_suffix(".json"))
        png = path.with_suffix(".png").read_bytes()
    except (UserError, OSError):
        return FigureBlock(path)
    return FigureBlock(
        path,
        facts["title"],
        facts["caption"],
        facts["sentence"],
        facts["answer"],
        facts["alt"],
        facts["numbers"],
        png,
    )


def points_table(table: Table) -> tuple[list[str], list[list[str]]]:
    """The section's table: a row for each grid point, means over seeds with intervals."""
    rows = table.select()
    rows = rows[rows["experiment"] == table.experiment] if "+" not in table.experiment else rows
    reached = [goal for goal in (80, 85) if rows[f"steps_to_{goal}"].notna().any()]
    columns = [
        "grid point",
        "seeds",
        "exact accuracy",
        "every seed",
        "cell accuracy",
        "cross entropy",
        "train − test",
        "parameters",
        "training FLOPs",
        "time a run",
        "puzzles/s",
        "peak memory",
        *(f"to {goal} % validation accuracy" for goal in reached),
    ]
    lines = []
    for _, part in rows.groupby("point", sort=True):
        exact = mean(part["exact_accuracy"])
        lines.append(
            [
                str(part["label"].iloc[0]),
                str(part["seed"].nunique()),
                percent(exact.value) + percents(_share(exact.bounds)),
                " ".join(f"{100 * value:.1f}" for value in part.sort_values("seed")["exact_accuracy"]),
                percent(part["accuracy"].mean()),
                number(_mean(part["cross_entropy"])),
                number(_mean(part["train_test_gap"]), 2),
                f"{int(part['parameters'].iloc[0]):,}",
                number(float(part["train_flops"].iloc[0])),
                duration(float(part["wall_seconds"].mean()) / 3600),
                number(_mean(part["rows_per_second"])),
                memory(_mean(part["peak_memory_bytes"])),
                *(_price(part, goal) for goal in reached),
            ]
        )
    return columns, lines


def _price(part: pd.DataFrame, goal: int) -> str:
    """Steps, time and FLOPs to an accuracy: mean over the seeds that reach it, and how many do."""
    steps = pd.to_numeric(part[f"steps_to_{goal}"], errors="coerce")
    if not steps.notna().any():
        return "never"
    seconds, flops = _mean(part[f"seconds_to_{goal}"]), _mean(part[f"flops_to_{goal}"])
    text = f"{number(_mean(steps))} steps, {duration((seconds or 0.0) / 3600)}, {number(flops)} FLOPs"
    return text + (f" ({steps.notna().sum()} of {len(steps)} seeds)" if steps.isna().any() else "")


def _share(bounds: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if bounds is None else (max(0.0, bounds[0]), min(1.0, bounds[1]))


def _mean(column: pd.Series) -> float | None:
    values = pd.to_numeric(column, errors="coerce").dropna()
    return float(values.mean()) if len(values) else None


def _fit_block(fit: dict[str, Any]) -> FitBlock:
    spec = fit["spec"]
    over = f"{label(spec['x']).name}" + (f" and {label(spec['second']).name}" if spec["second"] else "")
    rows, notes = [], []
    for group in fit["groups"]:
        hue = f"{label(spec['hue']).name} {value_name(group['hue'], spec['hue'])}" if spec["hue"] else ""
        if "error" in group:
            notes.append(f"{hue + ': ' if hue else ''}{group['error']}")
        for name, form in group.get("forms", {}).items():
            rows.append(_fit_row(hue, name, form, name == group["chosen"]))
        if group.get("law"):
            rows.append(_fit_row(hue, "power_law", {**group["law"], "aicc": None, "held_out": None}, True))
        notes += group.get("notes", [])
        if group.get("why"):
            notes.append(
                f"{hue + ': ' if hue else ''}{group['chosen'].replace('_', ' ')} shown: {group['why']}"
            )
        if group.get("delta"):
            notes.append(f"Huber threshold {number(group['delta'], 2)} in log units")
        if group.get("exclusions"):
            notes.append(
                f"{count(len(group['exclusions']), 'run')} not fitted: {group['exclusions'][0]['why']}"
            )
    return FitBlock(f"{label(spec['y']).name} against {over}", rows, list(dict.fromkeys(notes)))


def _fit_row(hue: str, name: str, form: dict[str, Any], chosen: bool) -> dict[str, str]:
    bounds = form.get("intervals") or {}
    values = [
        f"{key} = {number(value)}{interval(bounds.get(key), 3)}" for key, value in form["parameters"].items()
    ]
    out = form.get("held_out")
    return {
        "group": hue,
        "form": name.replace("_", " ") + (" (shown)" if chosen else ""),
        "parameters": ", ".join(values),
        "AICc": number(form["aicc"], 3) if form.get("aicc") is not None else "–",
        "held-out error": f"{100 * (2.718281828459045 ** out['log_error'] - 1):.0f} %" if out else "–",
        "failed refits": f"{100 * form['failed_share']:.1f} %"
        if form.get("failed_share") is not None
        else "–",
        "points bear it": "yes" if form.get("borne") else "no",
    }


def paper(rows: pd.DataFrame) -> list[dict[str, str]]:
    """The paper's numbers beside ours, where the very same configuration was run."""
    lines = []
    for item in REPORTED:
        found = accuracy(matching(rows, item.changes)) if len(rows) else None
        ours = found.value if found and found.n else None
        lines.append(
            {
                "what": item.name,
                "paper": percent(item.accuracy),
                "here": percent(ours) + percents(found.bounds)
                if found and found.n
                else "not run at this scale",
                "difference": points(ours - item.accuracy) + " points" if ours is not None else "",
            }
        )
    return lines


def cost(sections: Sequence[Section], runs: dict[str, Any]) -> list[dict[str, str]]:
    """Plan against actual, per experiment and in total (shared runs count once in the total)."""
    lines = []
    for section in sections:
        lines.append(
            {
                "experiment": section.name,
                "runs": f"{section.runs} of {section.planned_runs or section.runs}",
                "planned": duration(section.planned_hours),
                "actual": duration(section.hours),
                "ratio": _ratio(section.hours, section.planned_hours, section.runs, section.planned_runs),
            }
        )
    total = sum(run["device_seconds"] for run in runs.values()) / 3600 if runs else None
    lines.append(
        {
            "experiment": "all, each run once",
            "runs": str(len(runs)),
            "planned": "",
            "actual": duration(total),
            "ratio": "",
        }
    )
    return lines


def _ratio(actual: float | None, planned: float | None, runs: int, planned_runs: int) -> str:
    """Actual over planned, of what has run: an unfinished experiment must not look cheap."""
    if not actual or not planned:
        return "–"
    done = runs / planned_runs if planned_runs else 1.0
    return f"{actual / (planned * done):.2f}" if done else "–"


def _provenance(tables: Sequence[Table | None], runs: dict[str, Any]) -> list[tuple[str, str]]:
    """What the numbers were made by and from."""
    known = [table for table in tables if table is not None]
    commits = sorted(
        {run["commit"] + (" (with local changes)" if run["dirty"] else "") for run in runs.values()}
    )
    devices = sorted({run["device"] for run in runs.values()})
    versions = sorted({f"{key} {value}" for run in runs.values() for key, value in run["versions"].items()})
    resumed = sum(run["resumes"] > 0 for run in runs.values())
    facts = [
        ("commits", listed(commits[:6]) or "–"),
        ("devices", listed(devices[:6]) or "–"),
        ("versions", ", ".join(versions[:12]) or "–"),
        ("runs resumed", str(resumed)),
        (
            "data fingerprints",
            ", ".join(f"{t.experiment} {str(t.info.get('fingerprint'))[:12]}" for t in known),
        ),
    ]
    return facts
