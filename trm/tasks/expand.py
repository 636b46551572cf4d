"""Write a data set with its augmented copies in the layout of the reference tools."""

from __future__ import annotations

import shutil
from pathlib import Path

from trm.data.dataset import SPLITS, load
from trm.data.files import new_folder, read_manifest, write_manifest
from trm.errors import UserError
from trm.study.fingerprint import digest
from trm.tasks import task_of


def expand(directory: Path, out: Path, copies: int | None = None) -> int:
    """Write `directory` to `out` with `copies` (None: the data set's own number) of each training puzzle.

    Row (copies + 1) * p + k is copy k of puzzle p, as `Augmenter` makes it on the fly. Returns the training puzzles
    written.

    Raises:
        UserError: the folder is not one of our data sets, or `out` cannot be written.
    """
    manifest = read_manifest(directory, "dataset")
    sets = {name: load(directory, name) for name in SPLITS}
    train = sets["train"]
    if manifest.get("expanded"):
        raise UserError(f"{directory} already holds augmented copies: expand the data set it was made from")
    copies = train.meta.augmentations if copies is None else copies
    task = task_of(train.meta.task)
    task.check_copies(train, copies, directory)
    document = {key: value for key, value in manifest.items() if key != "sha256"}
    document |= {
        "name": out.name,
        "identity": digest({"expanded": copies, "of": manifest["identity"]}),
        "augmentations": 0,
        "expanded": copies,
    }
    with new_folder(out) as folder:
        task.write_copies(folder, sets, copies)
        if not (folder / "identifiers.json").exists():  # the copies keep the identifiers that they have
            shutil.copyfile(directory / "identifiers.json", folder / "identifiers.json")
        write_manifest(folder, document)
    return train.puzzles * (copies + 1)
