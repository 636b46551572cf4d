"""Data sets of ARC tasks: train, validation and test sets of originals, and data sets with all copies written out.

Training uses all pairs of the training tasks and the demonstrations of the others. Tests use their hidden pairs
under the same identifiers: task t (in training order) has 1 + t * (augmentations + 1), its copy k has k more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from trm.data import rng
from trm.data.dataset import Meta, PuzzleSet, dataset_json
from trm.data.pool import TEST, TRAIN, Pool
from trm.data.progress import Progress
from trm.data.splits import Splits
from trm.io import write_json
from trm.tasks.arc.arc import side_of
from trm.tasks.arc.augment import ArcAugmenter, copy_name, copy_transforms


def puzzle_sets(
    pool: Pool, splits: Splits, augmentations: int, seed: int
) -> tuple[list[PuzzleSet], list[str]]:
    """Train, validation and test sets of originals, and the tasks' names in the order of their identifiers."""
    tasks = np.concatenate([splits.train, splits.validation, splits.test])
    number = {int(task): index for index, task in enumerate(tasks)}
    cells = pool.questions.shape[1]
    meta = Meta(
        "arc", cells, 12, 1 + len(tasks) * (augmentations + 1), augmentations=augmentations, seed=seed
    )
    whole = set(splits.train.tolist())
    train = _set(pool, tasks, lambda task: None if task in whole else TRAIN, number, meta)
    held_out = [
        _set(pool, part, lambda task: TEST, number, meta) for part in (splits.validation, splits.test)
    ]
    return [train, *held_out], [pool.names[task] for task in tasks]


def _set(
    pool: Pool,
    tasks: np.ndarray,
    kind: Callable[[int], int | None],
    number: dict[int, int],
    meta: Meta,
) -> PuzzleSet:
    assert pool.puzzle_indices is not None
    assert pool.example_part is not None
    rows, starts = [], [0]
    for task in tasks.tolist():
        own = np.arange(pool.puzzle_indices[task], pool.puzzle_indices[task + 1])
        wanted = kind(task)
        own = own if wanted is None else own[pool.example_part[own] == wanted]
        rows.append(own)
        starts.append(starts[-1] + len(own))
    chosen = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
    return PuzzleSet(
        inputs=pool.questions[chosen],
        labels=pool.answers[chosen],
        puzzle_identifiers=np.array(
            [1 + number[t] * (meta.augmentations + 1) for t in tasks.tolist()], dtype=np.int32
        ),
        puzzle_indices=np.array(starts, dtype=np.int32),
        group_indices=np.arange(len(tasks) + 1, dtype=np.int32),
        meta=meta,
    )


def identifier_names(tasks: list[str], augmentations: int, seed: int) -> Iterator[str]:
    """Entries of identifiers.json: the name of each puzzle identifier."""
    yield "<blank>"
    copies = np.arange(augmentations + 1)
    root = rng.root_key(seed, "augment")
    for number, task in enumerate(tasks):
        turns, colours, _ = copy_transforms(root, np.full(len(copies), number), copies)
        yield task
        for copy in range(1, augmentations + 1):
            yield copy_name(task, int(turns[copy]), colours[copy])


def write_expanded(folder: Path, puzzles: PuzzleSet, copies: int, shifted: bool) -> int:
    """Write a split with copies 0..copies of every task, each a separate puzzle; returns the number of puzzles."""
    from trm.tasks.arc.kernels import move_grids

    folder.mkdir()
    augmenter = ArcAugmenter(puzzles, shifted)
    counts = np.diff(puzzles.puzzle_indices).astype(np.int64)
    total, cells = int(counts.sum()) * (copies + 1), puzzles.meta.seq_len
    arrays = [
        np.lib.format.open_memmap(folder / f"all__{name}.npy", mode="w+", dtype=np.uint8, shape=(total, cells))
        for name in ("inputs", "labels")
    ] if total else []  # fmt: skip
    if not total:
        for name in ("inputs", "labels"):
            np.save(folder / f"all__{name}.npy", np.empty((0, cells), dtype=np.uint8))
    progress = Progress("augmenting", puzzles.puzzles, "tasks")
    at, side = 0, side_of(cells)
    for puzzle in range(puzzles.puzzles):
        own = np.arange(puzzles.puzzle_indices[puzzle], puzzles.puzzle_indices[puzzle + 1])
        rows, copy = np.tile(own, copies + 1), np.repeat(np.arange(copies + 1), len(own))
        moves = augmenter.transforms(rows, copy)
        stop = at + len(rows)
        move_grids(puzzles.inputs[rows], augmenter.input_sizes[rows], *moves, arrays[0][at:stop], side)
        move_grids(puzzles.labels[rows], augmenter.label_sizes[rows], *moves, arrays[1][at:stop], side)
        at = stop
        progress.update(puzzle + 1)
    progress.close(puzzles.puzzles)
    identifiers = puzzles.puzzle_identifiers[:, None] + np.arange(copies + 1, dtype=np.int32)[None]
    np.save(folder / "all__puzzle_identifiers.npy", identifiers.reshape(-1).astype(np.int32))
    ends = np.concatenate([[0], np.cumsum(np.repeat(counts, copies + 1))]).astype(np.int32)
    np.save(folder / "all__puzzle_indices.npy", ends)
    count = puzzles.puzzles * (copies + 1)
    np.save(folder / "all__group_indices.npy", np.arange(0, count + 1, copies + 1, dtype=np.int32))
    meta = replace(puzzles.meta, augmentations=0)
    write_json(folder / "dataset.json", dataset_json(meta, puzzles.puzzles, count, total))
    return count
