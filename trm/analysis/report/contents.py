"""What a report holds, before it becomes HTML or PDF."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

BUDGET_COLUMNS = ["experiment", "runs of its own", "device-hours", "sum so far", "within the budget"]
State = Literal["met", "not met", "not run"]


@dataclass(frozen=True)
class Criterion:
    """One of the study's criteria with its number."""

    name: str
    state: State
    number: str
    """The number that decides, or why there is none."""


@dataclass
class FigureBlock:
    """One figure of a section; `png` is None when the files are missing."""

    path: Path
    title: str = ""
    caption: str = ""
    sentence: str = ""
    answer: str = ""
    alt: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)
    png: bytes | None = None


@dataclass
class FitBlock:
    """One law: a row for each group and compared form."""

    title: str
    rows: list[dict[str, str]]
    notes: list[str]


@dataclass
class Section:
    """One experiment."""

    name: str
    aliases: tuple[str, ...]
    question: str
    hypothesis: str
    answer: str
    runs: int
    planned_runs: int
    hours: float | None
    planned_hours: float | None
    columns: list[str] = field(default_factory=list)
    points: list[list[str]] = field(default_factory=list)
    figures: list[FigureBlock] = field(default_factory=list)
    fits: list[FitBlock] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Sentences for the red box: missing, failed, broken."""
    provenance: list[tuple[str, str]] = field(default_factory=list)
    rebuild: str = ""


@dataclass
class Report:
    """The whole."""

    title: str
    study: str
    scale: str
    intro: str
    criteria: list[Criterion]
    sections: list[Section]
    figures: list[FigureBlock]
    paper: list[dict[str, str]]
    cost: list[dict[str, str]]
    problems: list[str]
    puzzles: list[dict[str, Any]]
    rebuild: str
    budget: str
    budget_rows: list[list[str]]
    provenance: list[tuple[str, str]]
