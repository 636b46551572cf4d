"""Content of a report, before it becomes a page."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from trm.analysis.report.verdicts import Verdict
from trm.analysis.specs import ReportExperiment, ReportSpec


class Grid(NamedTuple):
    """A table of the page."""

    columns: list[str]
    rows: list[list[str]]


class Finding(NamedTuple):
    """One of the report's headlines."""

    section: str
    """The experiment it comes from."""
    text: str
    verdict: str
    """supported, contradicted, undecided or measured."""


@dataclass
class FigureBlock:
    """One figure."""

    path: Path
    title: str = ""
    caption: str = ""
    sentence: str = ""
    answer: str = ""
    strength: float | None = None
    findings: list[dict[str, Any]] = field(default_factory=list)
    inches: float = 7.0
    """Print width."""
    svg: str = ""
    narrow: str = ""
    """The panels below each other, for a narrow screen; empty: there is one."""
    problem: str = ""
    """Why there is no figure, and what to do; empty: there is one."""


@dataclass
class Section:
    """One experiment."""

    spec: ReportExperiment
    answer: str = ""
    runs: int = 0
    planned_runs: int = 0
    hours: float | None = None
    seeds: int = 0
    verdict: Verdict | None = None
    """Whether the hypothesis holds; None: no check is stated for it."""
    grids: list[Grid] = field(default_factory=list)
    """Results and costs, a row for each grid point."""
    figures: list[FigureBlock] = field(default_factory=list)
    findings: Grid | None = None
    """Every finding of its figures; None: they have at most one each."""
    problems: list[str] = field(default_factory=list)
    """What is missing, failed or broken."""
    provenance: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Report:
    """The whole report."""

    spec: ReportSpec
    scope: str
    """Task, number and size of the models, seeds, device time."""
    findings: list[Finding]
    hero: FigureBlock | None
    """The study's main figure: the first that combines experiments, else that of the first finding."""
    sections: list[Section]
    figures: list[FigureBlock]
    """Study-wide figures, without the hero."""
    cost: Grid
    problems: list[str]
    puzzles: list[dict[str, Any]]
    limits: Sequence[str]
    """What it does not show."""
    references: Sequence[tuple[str, str]]
    """Title and arXiv number."""
    provenance: list[tuple[str, str]]
