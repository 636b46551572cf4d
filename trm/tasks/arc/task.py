"""ARC-AGI as a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trm.data.dataset import PuzzleSet
from trm.data.pool import Pool
from trm.data.splits import Splits
from trm.errors import UserError
from trm.study.schema import DataConfig
from trm.tasks.arc import arc, dataset
from trm.tasks.arc.augment import ArcAugmenter
from trm.tasks.base import Augmenter, Files, HostAugmenter, Task


class Arc(Task):
    """Tasks of grid pairs; a puzzle is a task with several examples; each copy has its own identifier."""

    name = "arc"

    def pool(self, config: DataConfig, files: Files) -> Pool:
        return arc.generated_pool(config) if config.source == "generate" else arc.json_pool(config, files)

    def sets(
        self, config: DataConfig, pool: Pool, splits: Splits
    ) -> tuple[list[PuzzleSet], list[str], dict[str, Any]]:
        sets, tasks = dataset.puzzle_sets(pool, splits, config.augmentations, config.seed)
        names = list(dataset.identifier_names(tasks, config.augmentations, config.seed))
        return sets, names, {"tasks": tasks}

    def augmenter(self, puzzles: PuzzleSet, training: bool = True) -> Augmenter | HostAugmenter:
        if not puzzles.meta.augmentations:
            return Augmenter(puzzles.meta)
        return ArcAugmenter(puzzles, shifted=training)

    def check_copies(self, train: PuzzleSet, copies: int, place: Path) -> None:
        super().check_copies(train, copies, place)
        if copies > train.meta.augmentations:
            raise UserError(
                f"--copies {copies}: {place} has identifiers for {train.meta.augmentations} copies of each task: give "
                "no more, or build it with more data.augmentations"
            )

    def lines(self, tokens: np.ndarray, box_rows: int, box_cols: int) -> list[str]:
        grid = arc.decode(tokens)
        if grid is None:
            return ["(nothing)"]
        return ["".join(map(str, row)).replace("0", ".") for row in grid.tolist()]


TASK = Arc()
