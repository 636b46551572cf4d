"""ARC-AGI as a task.

Training uses all pairs of the training tasks and the demonstrations of the others. Validation and test use the hidden
pairs under the same identifiers: task t (in training order) has 1 + t * (augmentations + 1), its copy k has k more.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from trm.data import rng
from trm.data.dataset import Meta, PuzzleSet
from trm.data.pool import TEST, Pool
from trm.data.splits import Splits
from trm.study.dataset_identity import moves_puzzles
from trm.study.schema import DataConfig
from trm.tasks.arc import arc
from trm.tasks.arc.arc import COLOUR
from trm.tasks.arc.augment import (
    CHAINED,
    ArcAugmenter,
    copy_name,
    copy_transforms,
    moved_canvases,
    sizes,
    symmetries,
)
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

    def move(self, config: DataConfig, pool: Pool) -> None:
        assert pool.puzzle_indices is not None
        examples = np.diff(pool.puzzle_indices)
        tasks = symmetries(config, np.arange(pool.puzzles))
        turns, colours = (np.repeat(each, examples, axis=0) for each in tasks)
        place = np.zeros((len(turns), 2), dtype=np.int64)
        for grids in (pool.questions, pool.answers):
            grids[:] = moved_canvases(grids, sizes(grids), turns, colours, place)

    def sets(
        self, config: DataConfig, pool: Pool, splits: Splits
    ) -> tuple[list[PuzzleSet], list[str], dict[str, Any]]:
        sets, tasks = puzzle_sets(pool, splits, config.augmentations, config.seed)
        members = np.concatenate([splits.train, splits.validation, splits.test])
        names = list(identifier_names(config, tasks, members))
        return sets, names, {"tasks": tasks}

    def augmenter(self, train: PuzzleSet) -> Augmenter | HostAugmenter:
        return ArcAugmenter(train) if train.meta.augmentations else Augmenter(train.meta)

    def lines(self, tokens: np.ndarray, meta: Meta) -> list[str]:
        side = round(len(tokens) ** 0.5)
        row, column = divmod(int((tokens >= COLOUR).argmax()), side)  # a copy may be anywhere on the canvas
        grid = arc.decode(np.roll(tokens.reshape(side, side), (-row, -column), (0, 1)).ravel())
        if grid is None:
            return ["(nothing)"]
        return ["".join(map(str, row)).replace("0", ".") for row in grid.tolist()]


def puzzle_sets(
    pool: Pool, splits: Splits, augmentations: int, seed: int
) -> tuple[list[PuzzleSet], list[str]]:
    """Train, validation and test sets of originals, and the tasks' names in the order of their identifiers."""
    assert pool.puzzle_indices is not None
    assert pool.example_part is not None
    starts = pool.puzzle_indices
    tasks = np.concatenate([splits.train, splits.validation, splits.test])
    identifiers = np.zeros(pool.puzzles, dtype=np.int32)
    identifiers[tasks] = 1 + np.arange(len(tasks)) * (augmentations + 1)
    meta = Meta(
        "arc",
        pool.questions.shape[1],
        12,
        1 + len(tasks) * (augmentations + 1),
        augmentations=augmentations,
        seed=seed,
    )
    task_of_example = np.repeat(np.arange(pool.puzzles), np.diff(starts))

    def part(members: np.ndarray, shown: np.ndarray) -> PuzzleSet:
        """Those examples of the tasks `members` that are `shown` (bool [examples])."""
        rows = [np.arange(starts[task], starts[task + 1]) for task in members]
        rows = [own[shown[own]] for own in rows]
        chosen = np.concatenate([np.empty(0, dtype=np.int64), *rows])
        unknown = np.zeros(len(members), dtype=np.int32)
        return PuzzleSet(
            inputs=pool.questions[chosen],
            labels=pool.answers[chosen],
            puzzle_identifiers=identifiers[members],
            puzzle_indices=np.cumsum([0, *map(len, rows)]).astype(np.int32),
            group_indices=np.arange(len(members) + 1, dtype=np.int32),
            meta=meta,
            ratings=unknown,
        )

    hidden = np.equal(pool.example_part, TEST)
    train = part(tasks, ~hidden | np.isin(task_of_example, splits.train))
    sets = [train, part(splits.validation, hidden), part(splits.test, hidden)]
    return sets, [pool.names[task] for task in tasks]


def identifier_names(config: DataConfig, names: list[str], tasks: np.ndarray) -> Iterator[str]:
    """Entries of identifiers.json: each identifier's task, and its transformation of the task as published.

    Args:
        names, tasks: name and number in the pool of each task, in the order of their identifiers.
    """
    yield "<blank>"
    copies = np.arange(config.augmentations + 1)
    root = rng.root_key(config.seed, "augment")
    for number, (task, first, base) in enumerate(zip(names, *symmetries(config, tasks))):
        turns, colours, _ = copy_transforms(root, np.full(len(copies), number), copies)
        for copy in copies:
            name = copy_name(task, CHAINED[first, turns[copy]], colours[copy][base])
            yield name if copy or moves_puzzles(config) else task


TASK = Arc()
