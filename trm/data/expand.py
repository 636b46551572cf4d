"""Writes a data set with its augmented copies in the layout of the reference tools, at the speed of the disk."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from trm.data import rng
from trm.data.augment import Augmenter
from trm.data.dataset import SPLITS, PuzzleSet, dataset_json, load, write_split
from trm.data.files import new_folder, read_manifest, write_manifest
from trm.data.parallel import over_rows
from trm.errors import UserError
from trm.io import write_json
from trm.study.fingerprint import digest


def expand(directory: Path, out: Path, copies: int | None = None) -> int:
    """Write `directory` to `out` with `copies` (None: the data set's own number) beside each training puzzle.

    Row (copies + 1) * p + k is copy k of puzzle p, as `Augmenter` makes it on the fly. Returns the training puzzles
    written.

    Raises:
        UserError: for a folder that is no data set of ours, and for a place that cannot be written.
    """
    manifest = read_manifest(directory, "dataset")
    sets = {name: load(directory, name) for name in SPLITS}
    train = sets["train"]
    if manifest.get("expanded"):
        raise UserError(f"{directory} already holds augmented copies: expand the data set it was made from")
    copies = train.meta.augmentations if copies is None else copies
    if copies < 0:
        raise UserError(f"--copies {copies} is below 0: give 0 or more")
    document = {key: value for key, value in manifest.items() if key != "sha256"}
    document |= {
        "name": out.name,
        "identity": digest({"expanded": copies, "of": manifest["identity"]}),
        "augmentations": 0,
        "expanded": copies,
    }
    arc = train.meta.task == "arc"
    if arc and copies > train.meta.augmentations:
        raise UserError(
            f"--copies {copies}: {directory} has identifiers for {train.meta.augmentations} copies of a task: "
            "ask for no more, or build it with more data.augmentations"
        )
    with new_folder(out) as folder:
        if arc:
            from trm.tasks.arc.dataset import write_expanded

            for name in SPLITS:
                write_expanded(folder / name, sets[name], copies, shifted=name == "train")
            shutil.copyfile(directory / "identifiers.json", folder / "identifiers.json")
        else:
            _write_train(folder / "train", train, copies)
            for name in SPLITS[1:]:
                write_split(folder / name, sets[name])
            write_json(folder / "identifiers.json", ["<blank>"], indent=None)
        write_manifest(folder, document)
    return train.puzzles * (copies + 1)


def _write_train(folder: Path, train: PuzzleSet, copies: int) -> None:
    folder.mkdir()
    count = train.puzzles * (copies + 1)
    shape = (count, train.meta.seq_len)
    # written through the page cache: the copies never stand in this process's own memory as a whole
    arrays = [
        np.lib.format.open_memmap(folder / f"all__{name}.npy", mode="w+", dtype=np.uint8, shape=shape)
        for name in ("inputs", "labels")
    ]
    fill(train, copies, *arrays)
    del arrays
    np.save(folder / "all__puzzle_identifiers.npy", np.zeros(count, dtype=np.int32))
    np.save(folder / "all__puzzle_indices.npy", np.arange(count + 1, dtype=np.int32))
    np.save(folder / "all__group_indices.npy", np.arange(0, count + 1, copies + 1, dtype=np.int32))
    meta = replace(train.meta, augmentations=0)
    write_json(folder / "dataset.json", dataset_json(meta, train.groups, count, count))


def fill(train: PuzzleSet, copies: int, inputs: np.ndarray, labels: np.ndarray) -> None:
    """Fill uint8 [puzzles * (copies + 1), cells] with every copy of every puzzle (Sudoku, maze)."""
    from trm.data.expand_kernels import expand_sudoku, expand_turns

    meta = train.meta
    root = np.uint64(rng.root_key(meta.seed, "augment"))
    turns = Augmenter(meta).turns if meta.task == "maze" else None

    def work(start: int, stop: int) -> None:
        rows = slice(start * (copies + 1), stop * (copies + 1))
        arrays = (train.inputs[start:stop], train.labels[start:stop], inputs[rows], labels[rows])
        if turns is None:
            expand_sudoku(root, start, copies, meta.box_rows, meta.box_cols, *arrays)
        else:
            expand_turns(turns, copies, *arrays)

    over_rows(work, train.puzzles, max(1, 16384 // (copies + 1)), "augmenting", "puzzles")
