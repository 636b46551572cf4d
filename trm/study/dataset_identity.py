"""What a pool of puzzles and a data set cut from it depend on, and the sizes known before either exists.

Each identity is a partial `DataConfig`: only the fields that this task and source read, so that equal data have one
name, and `DataConfig(**identity)` builds it. Needs no numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trm.errors import UserError
from trm.study.official_files import FIRST_REVISIONS, OFFICIAL
from trm.study.schema import DataConfig

_SPLIT_FIELDS = ("train_puzzles", "augmentations", "validation_puzzles", "test_puzzles")


@dataclass(frozen=True)
class DataShape:
    """Sizes that a model is built for."""

    seq_len: int
    """Cells of a puzzle."""
    vocab_size: int
    """Distinct tokens, padding included."""
    num_puzzle_identifiers: int | None
    """Rows of the puzzle embedding; None: known only once the data set is built (ARC: one per augmented task)."""


def shape(data: DataConfig) -> DataShape:
    """Sizes of the data set's rows.

    Raises:
        UserError: for a combination of task and source, or of its numbers, that no data set can have.
    """
    _check(data)
    if data.task == "sudoku":
        side = data.box_rows * data.box_cols
        return DataShape(side * side, side + 2, 1)
    if data.task == "maze":
        return DataShape(data.maze_size**2, 6, 1)
    return DataShape(data.arc_side**2, 12, None)


def source_identity(data: DataConfig) -> dict[str, Any]:
    """The fields that a pool of puzzles depends on; paths are no part of it, their checksums are.

    Raises:
        UserError: as `shape`, and when files have no checksums.
    """
    _check(data)
    identity: dict[str, Any] = {"task": data.task, "source": data.source, "seed": data.seed}
    if data.task == "sudoku":
        identity |= {"box_rows": data.box_rows, "box_cols": data.box_cols}
    if data.task == "maze":
        identity["maze_size"] = data.maze_size
    if (
        data.task == "arc" and data.arc_side != 30
    ):  # a later field: the names of older data sets stay as they were
        identity["arc_side"] = data.arc_side
    if data.source == "mix":
        identity["sources"] = [source.model_dump(mode="json", exclude={"share"}) for source in data.sources]
    if data.source in ("csv", "json", "mix"):
        if len(data.sha256) != len(data.files) and not (data.sha256 and not data.files):
            raise UserError(
                f"data.sha256 has {len(data.sha256)} checksums for {len(data.files)} data.files: give one for each file"
            )
        identity["sha256"] = list(data.sha256)
    elif data.source == "official":
        official = OFFICIAL[data.task]
        if official.revision != FIRST_REVISIONS[data.task]:  # a later revision is another data set
            identity["sha256"] = list(official.sha256.values())
    elif data.source == "generate":
        identity["pool"] = _resolved_pool(data)
        if data.task == "sudoku":
            identity |= {
                "clues_min": data.clues_min,
                "clues_max": data.clues_max,
                "min_rating": data.min_rating,
            }
        elif data.task == "maze":
            identity["min_path"] = data.min_path
            if data.unique_path:  # a later field: the names of older data sets stay as they were
                identity["unique_path"] = True
    return identity


def dataset_identity(data: DataConfig) -> dict[str, Any]:
    """The fields that a data set depends on: its source's, and how it is split and augmented.

    Raises:
        UserError: as `source_identity`.
    """
    identity = source_identity(data) | {name: getattr(data, name) for name in _SPLIT_FIELDS}
    if data.held_out_hints != (0, 0):  # a later field: the names of older data sets stay as they were
        identity["held_out_hints"] = list(data.held_out_hints)
    return identity


def training_identity(data: DataConfig) -> dict[str, Any]:
    """What training depends on: the data set, and how rows are drawn from it.

    Raises:
        UserError: as `source_identity`.
    """
    drawn = data.model_dump(mode="json", include={"hints", "curriculum"}, exclude_defaults=True)
    if data.sources:
        drawn["shares"] = [source.share for source in data.sources]
    return dataset_identity(data) | drawn


def _resolved_pool(data: DataConfig) -> int:
    """Puzzles to generate; 0: every class there is (4x4 Sudoku)."""
    if (
        data.pool
        or data.source != "generate"
        or (data.task == "sudoku" and data.box_rows * data.box_cols == 4)
    ):
        return data.pool
    if data.train_puzzles is None or data.test_puzzles is None:
        raise UserError(
            "data.pool is 0 and data.train_puzzles or data.test_puzzles is null, so nothing says how many puzzles to "
            "generate: give data.pool, or both numbers"
        )
    return data.train_puzzles + data.validation_puzzles + data.test_puzzles


_SOURCES = {
    "sudoku": ("generate", "csv", "official", "mix"),
    "maze": ("generate", "csv", "official"),
    "arc": ("json", "generate"),
}


def _check(data: DataConfig) -> None:
    if data.source not in _SOURCES[data.task]:
        known = " or ".join(_SOURCES[data.task])
        raise UserError(f"data.source={data.source} has no {data.task} puzzles: use {known}")
    if data.source == "official":
        if data.task == "sudoku" and (data.box_rows, data.box_cols) != (3, 3):
            raise UserError(
                f"the official Sudoku are 9x9, not {data.box_rows}x{data.box_cols} boxes: "
                "set data.box_rows and data.box_cols to 3, or data.source to generate"
            )
        if data.task == "maze" and data.maze_size != 30:
            raise UserError(
                f"the official mazes are 30x30, not {data.maze_size}: set data.maze_size to 30, "
                "or data.source to generate"
            )
    if data.source == "generate" and data.task == "sudoku":
        cells = (data.box_rows * data.box_cols) ** 2
        if data.clues_max >= cells:
            raise UserError(
                f"data.clues_max={data.clues_max} leaves nothing to solve in {cells} cells: lower it"
            )
        if data.clues_min > data.clues_max:
            raise UserError(f"data.clues_min={data.clues_min} is above data.clues_max={data.clues_max}")
