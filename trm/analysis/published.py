"""What the paper reports (Jolicoeur-Martineau 2025, arXiv 2510.04871, tables 1-5), and how to find our counterpart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from trm.analysis.stats import Mean, mean
from trm.analysis.tables import Table
from trm.analysis.tables.store import equal
from trm.study.schema import RunConfig

IGNORED = {
    "training.precision", "training.micro_batches", "data.files", "data.sha256", "data.seed", "data.test_puzzles",
}  # fmt: skip
"""Keys that do not change what the paper's recipe is."""


@dataclass(frozen=True)
class Reported:
    """One published accuracy."""

    name: str
    accuracy: float
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Keys that differ from the paper's recipe (the schema's defaults)."""


REPORTED = (
    Reported("Sudoku-Extreme, MLP", 0.874),  # the authors later wrote 87 +- 2 %
    Reported("Sudoku-Extreme, attention", 0.747, {"model.mixer": "attention", "model.position": "rope"}),
    Reported("without EMA", 0.799, {"training.ema": 0.0}),
    Reported("T = n = 2", 0.737, {"model.h_cycles": 2, "model.l_cycles": 2}),
    Reported("4 layers, n = 3", 0.795, {"model.layers": 4, "model.l_cycles": 3}),
    Reported(
        "Maze-Hard 30x30, attention, n = 4",
        0.853,
        {
            "model.mixer": "attention",
            "model.position": "rope",
            "model.l_cycles": 4,
            "data.task": "maze",
            "data.augmentations": 7,
        },
    ),
)


def ours(tables: Sequence[Table]) -> list[Mean | None]:
    """Our exact accuracy for each of REPORTED, over seeds; None: no such run."""
    rows = [table.select() for table in tables]
    if not rows:
        return [None] * len(REPORTED)
    study = pd.concat(rows, ignore_index=True).drop_duplicates("run")
    return [mean(matching(study, item.changes)["exact_accuracy"]) for item in REPORTED]


def matching(rows: pd.DataFrame, changes: Mapping[str, Any]) -> pd.DataFrame:
    """Rows whose configuration is the paper's recipe (the schema's defaults) but for `changes`."""
    recipe = RunConfig().model_dump(mode="json", include={"model", "data", "training"})
    keep = pd.Series(True, index=rows.index)
    for name in rows.columns:
        if name in IGNORED or name.split(".")[0] not in recipe:
            continue
        section, _, field = name.partition(".")
        value = changes.get(name, recipe[section].get(field))
        if name == "model.position" and "model.mixer" in changes:
            continue  # the paper's attention variant is written with rope or, by its name, without
        keep &= equal(rows[name], value)
    return rows[keep]
