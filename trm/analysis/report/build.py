"""Files -> Report. What is missing or damaged becomes a named problem, so that the rest is still shown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from trm.analysis.origin import read_figure, read_fit
from trm.analysis.report.contents import FigureBlock, Finding, Grid, Report, Section
from trm.analysis.report.grids import cost, costs_grid, results_grid
from trm.analysis.report.prose import REFERENCES, limits, scope
from trm.analysis.report.verdicts import verdict
from trm.analysis.specs import ReportExperiment, ReportSpec
from trm.analysis.tables import Table, load
from trm.analysis.traces import puzzles
from trm.analysis.words import count, listed
from trm.errors import UserError

BLOCK = TypeAdapter(FigureBlock)
FINDINGS = 3
"""Headlines of the first screen."""


def build(spec: ReportSpec) -> Report:
    """Read every file that the spec names.

    Returns:
        The report. Files that do not exist or do not parse are named in its problems.
    """
    tables: dict[str, Table] = {}
    sections = []
    for experiment in spec.experiments:
        section, table = _section(experiment, spec)
        sections.append(section)
        if table is not None:
            tables[experiment.name] = table
    figures = [figure(path, spec) for path in spec.figures]
    runs = {key: run for table in tables.values() for key, run in table.info["runs"].items()}
    problems = [f"{section.spec.name}: {text}" for section in sections for text in section.problems]
    problems += [f"study figure {block.problem}" for block in figures if block.problem]
    # of one experiment, so that its puzzles compare
    traces: list[dict[str, Any]] = next(
        (table.info["traces"] for table in tables.values() if table.info.get("traces")), []
    )
    unique = {(trace["run"], str(trace["question"])): trace for trace in traces}
    found_out = findings(sections)
    first = next((item for item in sections if found_out and item.spec.name == found_out[0].section), None)
    drawn = [block for block in figures if not block.problem]
    hero = drawn[0] if drawn else _main(first.figures) if first else None
    return Report(
        spec=spec,
        scope=scope(list(tables.values()), runs),
        findings=found_out,
        hero=hero,
        sections=sections,
        figures=[block for block in figures if block is not hero],
        cost=cost(sections, runs),
        problems=problems,
        puzzles=puzzles(list(unique.values())),
        limits=limits(spec, sections),
        references=REFERENCES,
        provenance=_provenance(list(tables.values()), runs),
    )


def findings(sections: Sequence[Section]) -> list[Finding]:
    """The headlines: established effects first, by effect over half the width of the interval."""
    found = []
    for section in sections:
        block = _main(section.figures)
        if block and block.answer and not _empty(block):
            kept = next((row["verdict"] for row in block.findings if row["text"] == block.answer), "measured")
            found.append((block.strength or 0.0, Finding(section.spec.name, block.answer, kept)))
    found.sort(key=lambda item: -item[0])
    return [finding for _, finding in found[:FINDINGS]]


def _empty(block: FigureBlock) -> bool:
    """Whether a figure's only message is that nothing could be fitted."""
    return bool(block.findings) and all(row["value"] is None for row in block.findings)


def _main(blocks: Sequence[FigureBlock]) -> FigureBlock | None:
    """The figure that answers an experiment's question: the first with an established effect, else the first."""
    drawn = [block for block in blocks if not block.problem]
    return next((block for block in drawn if (block.strength or 0) > 1), drawn[0] if drawn else None)


def _section(spec: ReportExperiment, report: ReportSpec) -> tuple[Section, Table | None]:
    problems: list[str] = []
    try:
        table = load(spec.table)
    except UserError as error:
        table = None
        problems.append(f"no results: {error}")
    fits = []
    for path in spec.fits:
        try:
            fits.append(read_fit(path, [table] if table else []))
        except UserError as error:
            problems.append(f"no fit: {error}")
    blocks = [figure(path, report, [table] if table else []) for path in spec.figures]
    problems += [f"figure {block.problem}" for block in blocks if block.problem]
    problems += [
        f"run {item.run} failed: {item.sentence or 'see its log'} {item.log}".strip() for item in spec.failed
    ]
    if table is not None:
        problems += _table_problems(table)
    runs = table.info["runs"] if table else {}
    main = _main(blocks)
    section = Section(
        spec=spec,
        answer=main.answer if main else ("Not run." if table is None else "No figure answers it yet."),
        runs=len(runs),
        planned_runs=spec.planned_runs or (table.info.get("planned_runs", 0) if table else 0),
        hours=sum(run["device_seconds"] for run in runs.values()) / 3600 if runs else None,
        seeds=int(table.rows["seed"].nunique()) if table else 0,
        verdict=verdict(spec.expects, table, fits) if spec.expects else None,
        figures=blocks,
        problems=problems,
        provenance=_provenance([table], runs) if table else [],
    )
    told = [[row["verdict"], row["text"]] for block in blocks for row in block.findings]
    if len(told) > len(blocks):
        section.findings = Grid(["verdict", "finding"], told)
    if table is not None:
        section.grids = [results_grid(table), costs_grid(table)]
    return section, table


def _table_problems(table: Table) -> list[str]:
    def some(runs: list[str]) -> str:
        return listed(runs[:4]) + (f" and {len(runs) - 4} more" if len(runs) > 4 else "")

    found = []
    lost = table.info.get("missing", [])
    found += [f"run {item['run']}: {item['why']}" for item in lost if "why" in item]
    missing = sorted({item["run"] for item in lost if "why" not in item})
    if missing:
        found.append(f"{count(len(missing), 'run')} without complete results: {some(missing)}")
    broken = [key for key, run in table.info["runs"].items() if run["broken"]]
    if broken:
        found.append(f"loss not finite in {some(broken)}")
    unfinished = [key for key, run in table.info["runs"].items() if run["outcome"] != "finished"]
    if unfinished:
        found.append(f"not finished: {some(unfinished)}")
    return found


def figure(path: str | Path, spec: ReportSpec, tables: Sequence[Table] = ()) -> FigureBlock:
    """A figure's words; without its files, or with those of another figure, `problem` names the file and the remedy.
    `tables`: that the figure must have been made from, if it shows their experiments."""
    path = Path(path)
    if not path.with_suffix(".png").exists() or not path.with_suffix(".json").exists():
        return FigureBlock(path, problem=f"{path.name} is missing: build it again")
    try:
        facts = read_figure(path, tables, spec.identities.get(path.stem, ""))
        keys = ("title", "caption", "sentence", "answer", "svg", "narrow", "findings")
        more = {"strength": facts.get("strength"), "inches": facts.get("inches", 7.0)}
        return BLOCK.validate_python({"path": path, **{key: facts[key] for key in keys}, **more})
    except UserError as error:
        return FigureBlock(path, problem=f"{path.name}: {error}")
    except (KeyError, ValidationError):
        bad = path.with_suffix(".json")
        return FigureBlock(path, problem=f"{path.name}: {bad} lacks its words: delete it and build it again")


def _provenance(tables: Sequence[Table], runs: dict[str, Any]) -> list[tuple[str, str]]:
    """What the numbers were made by and from."""
    commits = sorted(
        {run["commit"] + (" (with local changes)" if run["dirty"] else "") for run in runs.values()}
    )
    devices = sorted({run["device"] for run in runs.values()})
    versions = sorted({f"{key} {value}" for run in runs.values() for key, value in run["versions"].items()})
    prints = [f"{table.experiment} {str(table.info.get('fingerprint'))[:12]}" for table in tables]
    return [
        ("commits", listed(commits[:6]) or "–"),
        ("devices", listed(devices[:6]) or "–"),
        ("versions", ", ".join(versions[:12]) or "–"),
        ("runs resumed", str(sum(run["resumes"] > 0 for run in runs.values()))),
        ("data fingerprints", ", ".join(prints)),
    ]
