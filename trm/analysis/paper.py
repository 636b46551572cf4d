"""What the paper reports (Jolicoeur-Martineau 2025, arXiv 2510.04871, tables 1-5), and how to find our counterpart."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SUDOKU_EXTREME = {"data.task": "sudoku", "data.source": "official", "data.box_rows": 3, "data.box_cols": 3}
"""Columns of runs on the paper's main data set."""
PAPER_ACCURACY = 0.874
"""Sudoku-Extreme, MLP variant, exact accuracy; the authors later wrote 87 +- 2 %."""


@dataclass(frozen=True)
class Reported:
    """One published accuracy."""

    name: str
    accuracy: float
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Keys that differ from the paper's recipe (the schema's defaults)."""


REPORTED = (
    Reported("Sudoku-Extreme, MLP", PAPER_ACCURACY),
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


@dataclass(frozen=True)
class Ablation:
    """A direction that the paper claims: `better` beats `worse`, all else equal."""

    name: str
    keys: tuple[str, ...]
    better: tuple[Any, ...]
    worse: tuple[Any, ...]
    nearest: bool = False
    """Without the paper's own values: the largest against the smallest value that was run."""


ABLATIONS = (
    Ablation("averaging the weights (EMA) helps", ("training.ema",), (0.999,), (0.0,), nearest=True),
    Ablation("more recursion helps", ("model.h_cycles", "model.l_cycles"), (3, 6), (2, 2), nearest=True),
    Ablation("two layers beat four with half the cycles", ("model.layers", "model.l_cycles"), (2, 6), (4, 3)),
    Ablation("MLP beats attention on Sudoku", ("model.mixer",), ("mlp",), ("attention",)),
)
