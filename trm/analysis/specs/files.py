"""What `trm table` and `trm report` read: which files make an experiment, which make a report."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from trm.analysis.specs.base import Spec


class TableRun(Spec):
    """One run of a grid point and where its files lie."""

    run: str
    seed: int
    directory: str
    """Folder with training.json, history.csv and the evaluations."""
    evaluations: tuple[str, ...] = ()
    """File names inside `directory`; the first is the one that counts."""


class TablePoint(Spec):
    """One point of the grid: its coordinates and its seeds."""

    coords: dict[str, Any] = {}
    label: str = ""
    """Words for the point. Brackets at its end say what is set for a whole block of the grid."""
    runs: tuple[TableRun, ...] = Field(min_length=1)


class TableSpec(Spec):
    """What `trm table` reads: one experiment at one scale of one study."""

    name: str
    scale: str
    study: str
    recipe: dict[str, Any] = {}
    """The scale's own recipe, dotted key -> value: what ablations compare with where they name no baseline."""
    points: tuple[TablePoint, ...] = Field(min_length=1)


class FailedRun(Spec):
    """A run known to have failed, for the report's red lines."""

    run: str
    sentence: str = ""
    log: str = ""


class ReportExperiment(Spec):
    """One experiment's section of the report. Files that do not exist are said to be missing, in red."""

    name: str
    aliases: tuple[str, ...] = ()
    question: str = ""
    hypothesis: str = ""
    table: str
    """Path of its table.csv (the two files beside it are found from the name)."""
    fits: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    """Paths of the figures' PDFs; the PNG and JSON beside them are read."""
    planned_runs: Annotated[int, Field(ge=0)] = 0
    planned_hours: Annotated[float, Field(ge=0)] | None = None
    """Device-hours that the plan expected."""
    failed: tuple[FailedRun, ...] = ()
    rebuild: str = ""
    """The command that builds this experiment."""


class ReportSpec(Spec):
    """What `trm report` reads."""

    study: str
    scale: str
    title: str = "Scaling study of the Tiny Recursive Model"
    intro: str = ""
    """A sentence or two on the scale: what is small about it."""
    experiments: tuple[ReportExperiment, ...] = Field(min_length=1)
    figures: tuple[str, ...] = ()
    """Study-wide figures (scaling_laws, compute_frontier)."""
    rebuild: str = "snakemake --profile profiles/local"
    """The command that builds the whole study."""
    budget: str = ""
    """The plan's words on the whole study's cost, and on what a budget buys."""
    budget_rows: tuple[tuple[str, str, str, str, str], ...] = ()
    """The same as a table: experiment, runs, device-hours, their sum so far, whether the budget buys it."""
