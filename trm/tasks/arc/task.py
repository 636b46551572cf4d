"""ARC-AGI as a task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trm.data.dataset import PuzzleSet
from trm.data.pool import Pool
from trm.data.splits import Splits
from trm.errors import UserError
from trm.study.schema import DataConfig
from trm.tasks.arc import arc, dataset
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
        nothing = [np.zeros(puzzles.groups, dtype=np.int32) for puzzles in sets]
        sets = [replace(puzzles, ratings=zeros, sources=zeros) for puzzles, zeros in zip(sets, nothing)]
        names = list(dataset.identifier_names(tasks, config.augmentations, config.seed))
        return sets, names, {"tasks": tasks}

    def augmenter(self, puzzles: PuzzleSet) -> Augmenter | HostAugmenter:
        """Copies are made on the host (`ArcAugmenter.rows`), unless they are written out."""
        from trm.tasks.arc.augment import ArcAugmenter

        return ArcAugmenter(puzzles) if puzzles.meta.augmentations else Augmenter(puzzles.meta)

    def check_copies(self, train: PuzzleSet, copies: int, place: Path) -> None:
        super().check_copies(train, copies, place)
        if copies > train.meta.augmentations:
            raise UserError(
                f"--copies {copies}: {place} has identifiers for {train.meta.augmentations} copies of a task: "
                "ask for no more, or build it with more data.augmentations"
            )

    def write_copies(self, folder: Path, sets: dict[str, PuzzleSet], copies: int) -> None:
        for name, puzzles in sets.items():
            dataset.write_expanded(folder / name, puzzles, copies, shifted=name == "train")

    def lines(self, tokens: np.ndarray, box_rows: int, box_cols: int) -> list[str]:
        grid = arc.decode(tokens)
        if grid is None:
            return ["(nothing)"]
        return ["".join(map(str, row)).replace("0", ".") for row in grid.tolist()]


TASK = Arc()
