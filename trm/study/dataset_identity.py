"""Identities of puzzle pools and data sets, and the sizes known before either is built.

An identity is a partial `DataConfig` with only the fields that this task and source read, so that equal data have one
name and `DataConfig(**identity)` builds them. Needs no numpy.
"""

from typing import Any

from trm.errors import UserError
from trm.study.schema import DataConfig
from trm.study.tasks import DataShape, spec_of

_SPLIT_FIELDS = ("train_puzzles", "augmentations", "validation_puzzles", "test_puzzles")


def shape(data: DataConfig) -> DataShape:
    """Sizes of the data set's rows. UserError: no data set can have this combination of fields."""
    _check(data)
    return spec_of(data.task).shape(data)


def source_identity(data: DataConfig) -> dict[str, Any]:
    """The fields that a pool of puzzles depends on; files count by their checksums, not their paths. UserError: as for
    `shape`, or files without checksums."""
    _check(data)
    spec = spec_of(data.task)
    identity: dict[str, Any] = {"task": data.task, "source": data.source, "seed": data.seed}
    identity |= spec.fields(data)
    if data.source in ("csv", "json"):
        if len(data.sha256) != len(data.files) and not (data.sha256 and not data.files):
            raise UserError(
                f"data.sha256 has {len(data.sha256)} checksums for {len(data.files)} data.files: give one for each file"
            )
        identity["sha256"] = list(data.sha256)
        if data.names:
            identity["names"] = list(data.names)
    elif data.source == "official" and (official := spec.official):
        if official.revision != official.first_revision:  # a later revision is another data set
            identity["sha256"] = list(official.sha256.values())
    elif data.source == "generate":
        identity["pool"] = _resolved_pool(data)
        identity |= spec.generated_fields(data)
    if data.source != "generate":
        identity["symmetry"] = data.symmetry
    return identity


def dataset_identity(data: DataConfig) -> dict[str, Any]:
    """The fields that a data set depends on: those of its source, its splits and its augmentation. UserError: as for
    `source_identity`."""
    identity = source_identity(data) | {name: getattr(data, name) for name in _SPLIT_FIELDS}
    if data.held_out_hints != (0, 0):  # a later field: the names of older data sets must not change
        identity["held_out_hints"] = list(data.held_out_hints)
    return identity


def training_identity(data: DataConfig) -> dict[str, Any]:
    """The data fields that training depends on: those of the data set, and how rows are drawn from it. UserError: as
    for `source_identity`."""
    drawn = data.model_dump(mode="json", include={"hints", "curriculum"}, exclude_defaults=True)
    return dataset_identity(data) | drawn


def moves_puzzles(data: DataConfig) -> bool:
    """Whether puzzles are put under random symmetries: those from files, unless `data.symmetry` is none."""
    return data.source != "generate" and data.symmetry == "random"


def _resolved_pool(data: DataConfig) -> int:
    """Puzzles to generate; 0: one of every class (4x4 Sudoku)."""
    if data.pool or spec_of(data.task).generates_all(data):
        return data.pool
    if data.train_puzzles is None or data.test_puzzles is None:
        raise UserError(
            "data.pool is 0, and data.train_puzzles or data.test_puzzles is null: give data.pool (the puzzles to "
            "generate), or both numbers"
        )
    return data.train_puzzles + data.validation_puzzles + data.test_puzzles


def _check(data: DataConfig) -> None:
    spec = spec_of(data.task)
    if data.source not in spec.sources:
        known = " or ".join(spec.sources)
        raise UserError(f"data.source={data.source} has no {data.task} puzzles: use {known}")
    if not spec.takes_hints and (data.gives_hints or data.held_out_hints != (0, 0)):
        raise UserError(f"data.hints, data.held_out_hints: questions of {data.task} have no clues to add")
    spec.check(data)
