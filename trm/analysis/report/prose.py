"""Words of the report that no figure says: the size of the study; references."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from trm.analysis.report.contents import Section
from trm.analysis.specs import ReportSpec
from trm.analysis.tables import Table
from trm.analysis.words import count, duration, listed

REFERENCES = (
    ("Jolicoeur-Martineau 2025, Less is More: Recursive Reasoning with Tiny Networks", "2510.04871"),
    ("Wang et al. 2025, Hierarchical Reasoning Model", "2506.21734"),
    ("Hoffmann et al. 2022, Training Compute-Optimal Large Language Models (isoFLOP curves)", "2203.15556"),
    (
        "Hestness et al. 2017, Deep Learning Scaling is Predictable, Empirically (laws with a floor)",
        "1712.00409",
    ),
    ("Muennighoff et al. 2023, Scaling Data-Constrained Language Models", "2305.16264"),
    ("McCandlish et al. 2018, An Empirical Model of Large-Batch Training", "1812.06162"),
    ("Hesterberg 2015, What Teachers Should Know about the Bootstrap", "1411.5279"),
)


PAPER = 5_000_000
"""Parameters from which a model has the paper's scale."""


def scope(tables: Sequence[Table], runs: Mapping[str, Any]) -> str:
    """What the study consists of, in a line: `6x6 Sudoku; 288 models of 3,890 to 23,714 parameters; ...`."""
    if not tables:
        return "Nothing has run."
    rows = pd.concat([table.rows for table in tables])
    tasks = dict.fromkeys(
        _task(*key) for key in zip(rows["data.task"], rows["data.box_rows"], rows["data.box_cols"])
    )
    small, large = int(rows["parameters"].min()), int(rows["parameters"].max())
    size = f"{small:,}" + f" to {large:,}" * (large > small)
    hours = sum(run["device_seconds"] for run in runs.values()) / 3600
    seeds = pd.concat([table.rows.groupby("point")["seed"].nunique() for table in tables])
    few, most = int(seeds.min()), int(seeds.max())
    each = f"{few} to " * (few < most) + count(most, "seed") + " a point"
    text = (
        f"{listed(list(tasks))}; {count(len(runs), 'model')} of {size} parameters; {each}; {duration(hours)}."
    )
    return text + " Not the paper's scale." * (large < PAPER)


def _task(name: str, rows: float, columns: float) -> str:
    """`6x6 Sudoku`, `mazes`."""
    side = int(rows * columns) if name == "sudoku" and rows == rows else 0
    return f"{side}x{side} Sudoku" if side else {"maze": "mazes", "arc": "ARC tasks"}.get(name, name)


def limits(spec: ReportSpec, sections: Sequence[Section]) -> list[str]:
    """What the report does not show."""
    found = [spec.intro] if spec.intro else []
    found.append("Intervals describe retraining on one data set; they say nothing of another one.")
    if unsure := [
        section.spec.name for section in sections if section.verdict and section.verdict.state == "undecided"
    ]:
        found.append(f"{count(len(unsure), 'hypothesis', 'hypotheses')} of {len(sections)} remain undecided.")
    if lost := [section.spec.name for section in sections if not section.runs]:
        found.append(f"Not run: {listed(lost)}.")
    return found
