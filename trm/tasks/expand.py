"""Write a data set with its augmented copies in the layout of the reference tools."""

import shutil
from pathlib import Path

import numpy as np

from trm.data.dataset import SPLITS, PuzzleSet, dataset_json, load, write_split
from trm.data.files import new_folder, read_manifest, write_manifest
from trm.data.progress import over_rows
from trm.data.sampler import SampledRows
from trm.errors import UserError
from trm.io import write_json
from trm.study.fingerprint import digest
from trm.study.tasks import spec_of
from trm.tasks import task_of
from trm.tasks.base import Augmenter, HostAugmenter, moved


def expand(directory: Path, out: Path, copies: int | None = None) -> int:
    """Write `directory` to `out` with `copies` (None: the data set's own number) of each training puzzle.

    Test puzzles are copied too if their copies vote. Row (copies + 1) * p + k is copy k of puzzle p, as the augmenter
    makes it on the fly.

    Returns:
        Training puzzles written.

    Raises:
        UserError: the folder is not one of our data sets, or `out` cannot be written.
    """
    manifest = read_manifest(directory, "dataset")
    sets = {name: load(directory, name) for name in SPLITS}
    train = sets["train"]
    if manifest.get("expanded"):
        raise UserError(f"{directory} already holds augmented copies: expand the data set it was made from")
    copies = train.meta.augmentations if copies is None else copies
    task, votes = task_of(train.meta.task), spec_of(train.meta.task).votes
    task.check_copies(train, copies, directory)
    document = {key: value for key, value in manifest.items() if key != "sha256"}
    document |= {
        "name": out.name,
        "identity": digest({"expanded": copies, "of": manifest["identity"]}),
        "augmentations": 0,
        "expanded": copies,
    }
    with new_folder(out) as folder:
        for name, puzzles in sets.items():
            if name == "train" or votes:
                write_copies(
                    folder / name, puzzles, copies, task.augmenter(puzzles, training=name == "train")
                )
            else:
                write_split(folder / name, puzzles)
        shutil.copyfile(directory / "identifiers.json", folder / "identifiers.json")
        write_manifest(folder, document)
    return train.puzzles * (copies + 1)


def write_copies(folder: Path, puzzles: PuzzleSet, copies: int, augmenter: Augmenter | HostAugmenter) -> None:
    """Write a split with copies 0..copies of each puzzle, each a puzzle of its own, into a new folder."""
    folder.mkdir()
    count, rows = puzzles.puzzles * (copies + 1), puzzles.examples * (copies + 1)
    first = puzzles.puzzle_indices.astype(np.int64)
    examples = np.diff(first)
    identifiers = np.empty(count, dtype=np.int32)
    # memory-mapped: the process never holds all copies at once
    inputs, labels = (
        np.lib.format.open_memmap(
            folder / f"all__{name}.npy", mode="w+", dtype=np.uint8, shape=(rows, puzzles.meta.seq_len)
        )
        for name in ("inputs", "labels")
    )

    def work(start: int, stop: int) -> None:
        sizes = examples[start:stop] * (copies + 1)
        puzzle = np.repeat(np.arange(start, stop), sizes)
        offset = np.arange(len(puzzle)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        copy, example = np.divmod(offset, examples[puzzle])
        at = slice(first[start] * (copies + 1), first[stop] * (copies + 1))
        batch = SampledRows(first[puzzle] + example, puzzle, copy)
        inputs[at], labels[at], puzzle_ids = _augmented(puzzles, augmenter, batch)
        identifiers[start * (copies + 1) : stop * (copies + 1)] = puzzle_ids[example == 0]

    chunk = 16384 // int((copies + 1) * examples.max(initial=1))
    over_rows(work, puzzles.puzzles, max(1, chunk), "augmenting", "puzzles")
    np.save(folder / "all__puzzle_identifiers.npy", identifiers)
    ends = np.concatenate([[0], np.cumsum(np.repeat(examples, copies + 1))])
    np.save(folder / "all__puzzle_indices.npy", ends.astype(np.int32))
    np.save(folder / "all__group_indices.npy", np.arange(0, count + 1, copies + 1, dtype=np.int32))
    write_json(folder / "dataset.json", dataset_json(puzzles.meta, puzzles.groups, count, rows))


def _augmented(
    puzzles: PuzzleSet, augmenter: Augmenter | HostAugmenter, batch: SampledRows
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, labels (uint8 [b, cells]) and puzzle identifiers (int32 [b]) of a batch."""
    if isinstance(augmenter, HostAugmenter):
        return augmenter.rows(batch)
    maps = augmenter.maps(batch.puzzles, batch.copies)
    inputs, labels = (moved(grids[batch.rows], maps) for grids in (puzzles.inputs, puzzles.labels))
    return inputs, labels, puzzles.puzzle_identifiers[batch.puzzles]
