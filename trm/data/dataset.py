"""Data sets on disk, in the layout of the reference trainer: `{train,validation,test}/all__*.npy, dataset.json`.

Our data sets hold the original puzzles (groups of one) and a manifest; augmented copies are made on the fly. Data sets
of the reference tools, which have no manifest and hold the copies, load as well.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from trm.data.files import MANIFEST, load_array, read_manifest, verify
from trm.errors import UserError
from trm.io import read_json, write_json
from trm.study.tasks import recognised

SPLITS = ("train", "validation", "test")
ARRAYS = ("inputs", "labels", "puzzle_identifiers", "puzzle_indices", "group_indices")
OWN_ARRAYS = ("ratings",)
"""Arrays that the reference does not have; missing in data sets of other tools and in older ones."""


@dataclass(frozen=True)
class Meta:
    """Properties of a data set that the model and the augmenter need."""

    task: str
    """sudoku, maze or arc."""
    seq_len: int
    vocab_size: int
    num_puzzle_identifiers: int
    augmentations: int = 0
    """Augmented copies per puzzle made on the fly; 0 if they are in the files."""
    seed: int = 0
    """Seed of the copies."""
    box_rows: int = 0
    box_cols: int = 0
    pad_id: int = 0
    ignore_label_id: int | None = 0
    blank_identifier_id: int = 0
    name: str = ""
    """Name of its folder."""


@dataclass(frozen=True)
class PuzzleSet:
    """One split in memory. A group is an original puzzle and its copies in the files; a puzzle has one or more
    examples."""

    inputs: np.ndarray
    """Tokens, uint8 [examples, seq_len]."""
    labels: np.ndarray
    """Tokens, uint8 [examples, seq_len]; `meta.ignore_label_id` for cells without a label."""
    puzzle_identifiers: np.ndarray
    """int32 [puzzles]."""
    puzzle_indices: np.ndarray
    """int32 [puzzles + 1]: where each puzzle's examples start."""
    group_indices: np.ndarray
    """int32 [groups + 1]: where each group's puzzles start."""
    meta: Meta
    ratings: np.ndarray | None = None
    """int32 [groups]: difficulty as in the pool; -1: unknown."""

    @property
    def examples(self) -> int:
        """Rows."""
        return len(self.inputs)

    @property
    def puzzles(self) -> int:
        """Puzzles, including augmented copies in the files."""
        return len(self.puzzle_indices) - 1

    @property
    def groups(self) -> int:
        """Original puzzles."""
        return len(self.group_indices) - 1

    @property
    def puzzle_of_example(self) -> np.ndarray:
        """int64 [examples]: the puzzle of each row."""
        return np.repeat(np.arange(self.puzzles), np.diff(self.puzzle_indices))

    def first(self, groups: int) -> Self:
        """The first groups: a smaller data set of the same seed is a prefix."""
        groups = min(groups, self.groups)
        puzzles = int(self.group_indices[groups])
        rows = int(self.puzzle_indices[puzzles])
        return replace(
            self,
            inputs=self.inputs[:rows],
            labels=self.labels[:rows],
            puzzle_identifiers=self.puzzle_identifiers[:puzzles],
            puzzle_indices=self.puzzle_indices[: puzzles + 1],
            group_indices=self.group_indices[: groups + 1],
            ratings=None if self.ratings is None else self.ratings[:groups],
        )


def one_example_set(inputs: np.ndarray, labels: np.ndarray, meta: Meta) -> PuzzleSet:
    """A set of original puzzles with one example each, all with the blank identifier."""
    count = len(inputs)
    return PuzzleSet(
        inputs=inputs,
        labels=labels,
        puzzle_identifiers=np.zeros(count, dtype=np.int32),
        puzzle_indices=np.arange(count + 1, dtype=np.int32),
        group_indices=np.arange(count + 1, dtype=np.int32),
        meta=meta,
    )


def dataset_json(meta: Meta, groups: int, puzzles: int, examples: int) -> dict[str, Any]:
    """The fields of `dataset.json` that the reference trainer reads."""
    return {
        "pad_id": meta.pad_id,
        "ignore_label_id": meta.ignore_label_id,
        "blank_identifier_id": meta.blank_identifier_id,
        "vocab_size": meta.vocab_size,
        "seq_len": meta.seq_len,
        "num_puzzle_identifiers": meta.num_puzzle_identifiers,
        "total_groups": groups,
        "mean_puzzle_examples": examples / puzzles if puzzles else 1.0,
        "total_puzzles": puzzles,
        "sets": ["all"],
    }


def write_split(folder: Path, puzzles: PuzzleSet) -> None:
    """Write one split's arrays and `dataset.json` into a new folder."""
    folder.mkdir()
    for name in (*ARRAYS, *OWN_ARRAYS):
        if (array := getattr(puzzles, name)) is not None:
            np.save(folder / f"all__{name}.npy", array)
    document = dataset_json(puzzles.meta, puzzles.groups, puzzles.puzzles, puzzles.examples)
    write_json(folder / "dataset.json", document)


def load(directory: str | Path, split: str) -> PuzzleSet:
    """One split of a data set (`train`, `validation` or `test`), verified against the manifest.

    Data sets without a manifest (built by the reference tools) are checked for consistency only.

    Raises:
        UserError: a file is missing, damaged, changed or inconsistent.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a data set: build it first, or check the path")
    if not (folder / split).is_dir():
        known = [name for name in SPLITS if (folder / name).is_dir()]
        raise UserError(
            f"{folder} has no {split} split{', only ' + ', '.join(known) if known else ''}: check the path"
        )
    manifest: dict[str, Any] = {}
    if (folder / MANIFEST).exists():
        manifest = read_manifest(folder, "dataset")
        own = [f"{split}/all__{name}.npy" for name in OWN_ARRAYS]
        names = [f"{split}/all__{name}.npy" for name in ARRAYS] + [f"{split}/dataset.json"]
        verify(folder, manifest["sha256"], names + [name for name in own if name in manifest["sha256"]])
    meta = _meta(folder, split, manifest)
    arrays = {}
    for name in (*ARRAYS, *OWN_ARRAYS):
        path = folder / split / f"all__{name}.npy"
        if name in ARRAYS or path.exists():
            kind, axes = (np.uint8, 2) if name in ("inputs", "labels") else (np.int32, 1)
            arrays[name] = load_array(path, kind, axes)
    puzzles = PuzzleSet(**arrays, meta=meta)
    _check(folder / split, puzzles)
    return puzzles


def _meta(folder: Path, split: str, manifest: dict[str, Any]) -> Meta:
    path = folder / split / "dataset.json"
    document = read_json(path)
    sizes = ("seq_len", "vocab_size", "num_puzzle_identifiers")
    fields = (*sizes, "pad_id", "blank_identifier_id", "ignore_label_id")
    for name in fields:
        value = document.get(name) if isinstance(document, dict) else None
        if not (isinstance(value, int) or (name == "ignore_label_id" and value is None)):
            raise UserError(f"{path} has no whole number `{name}`: it does not describe a data set")
    if document.get("sets", ["all"]) != ["all"]:
        raise UserError(f"{path} names the sets {document['sets']}: only one set, `all`, can be read")
    own = {
        name: manifest[name]
        for name in ("task", "augmentations", "seed", "box_rows", "box_cols")
        if name in manifest
    }
    if not own:
        own = {"task": recognised(document["seq_len"], document["vocab_size"])}
    return Meta(**{name: document[name] for name in fields}, **own, name=folder.resolve().name)


def _check(folder: Path, puzzles: PuzzleSet) -> None:
    meta = puzzles.meta

    def indices(name: str, array: np.ndarray, total: int) -> None:
        if not len(array) or array[0] != 0 or array[-1] != total or (np.diff(array) < 0).any():
            raise UserError(
                f"{folder}/all__{name}.npy must increase from 0 to {total}: build the data set again"
            )

    if puzzles.inputs.shape != puzzles.labels.shape or puzzles.inputs.shape[1] != meta.seq_len:
        raise UserError(
            f"{folder}: inputs {puzzles.inputs.shape} and labels {puzzles.labels.shape} do not fit "
            f"seq_len {meta.seq_len}: build the data set again"
        )
    indices("puzzle_indices", puzzles.puzzle_indices, puzzles.examples)
    indices("group_indices", puzzles.group_indices, puzzles.puzzles)
    identifiers = puzzles.puzzle_identifiers
    for name, count in (("ratings", puzzles.groups), ("puzzle_identifiers", puzzles.puzzles)):
        array = getattr(puzzles, name)
        if array is not None and len(array) != count:
            raise UserError(f"{folder}/all__{name}.npy has {len(array)} entries, not {count}")
    for name, array, bound in (
        ("inputs", puzzles.inputs, meta.vocab_size),
        ("labels", puzzles.labels, meta.vocab_size),
        ("puzzle_identifiers", identifiers, meta.num_puzzle_identifiers),
    ):
        if array.size and int(array.max()) >= bound:
            raise UserError(f"{folder}/all__{name}.npy holds {int(array.max())}, above {bound - 1}")
