"""ARC-AGI as a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trm.data.dataset import Meta, PuzzleSet
from trm.data.pool import Pool
from trm.data.splits import Splits
from trm.errors import UserError
from trm.study.schema import DataConfig
from trm.tasks.arc import arc, dataset
from trm.tasks.arc.arc import COLOUR
from trm.tasks.arc.augment import ArcAugmenter, moved_canvases, sizes, symmetries
from trm.tasks.base import Augmenter, Files, HostAugmenter, Task
from trm.tasks.marginals import Symmetric


class Arc(Task):
    """Tasks of grid pairs; a puzzle is a task with several examples; each copy has its own identifier."""

    name = "arc"

    def pool(self, config: DataConfig, files: Files) -> Pool:
        return arc.generated_pool(config) if config.source == "generate" else arc.json_pool(config, files)

    def symmetric(self, meta: Meta) -> Symmetric:
        colours = tuple(range(COLOUR + 1, meta.vocab_size))  # colour 0, the background, stays
        return Symmetric("colour", colours, (), np.array([], dtype=np.int64))

    def move(self, config: DataConfig, pool: Pool, puzzles: np.ndarray) -> None:
        assert pool.puzzle_indices is not None  # all tasks of a pool are from files, or none
        examples = np.diff(pool.puzzle_indices)
        turns, colours = (np.repeat(each, examples, axis=0) for each in symmetries(config, puzzles))
        place = np.zeros((len(turns), 2), dtype=np.int64)
        for grids in (pool.questions, pool.answers):
            grids[:] = moved_canvases(grids, sizes(grids), turns, colours, place)

    def sets(
        self, config: DataConfig, pool: Pool, splits: Splits
    ) -> tuple[list[PuzzleSet], list[str], dict[str, Any]]:
        sets, tasks = dataset.puzzle_sets(pool, splits, config.augmentations, config.seed)
        members = np.concatenate([splits.train, splits.validation, splits.test])
        names = list(dataset.identifier_names(config, tasks, members))
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
