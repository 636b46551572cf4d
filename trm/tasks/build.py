"""Build a data set from a pool: split it and write it with a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trm.data.dataset import SPLITS, write_split
from trm.data.files import new_folder, write_manifest
from trm.data.pool import histogram, load_pool
from trm.data.splits import split
from trm.errors import UserError
from trm.io import write_json
from trm.study.dataset_identity import dataset_identity, source_identity
from trm.study.fingerprint import canonical_json, digest
from trm.study.schema import DataConfig
from trm.tasks import task_of


def build_dataset(config: DataConfig, source: Path, out: Path) -> dict[str, Any]:
    """Split a pool into a data set and write it; returns its manifest.

    Raises:
        UserError: the pool is of another source, too small or damaged, or the folder is not writable.
    """
    pool, source_manifest = load_pool(source)
    if config.source in ("csv", "json", "mix") and not config.sha256:
        config = config.model_copy(update={"sha256": tuple(source_manifest["identity"].get("sha256", ()))})
    wanted = canonical_json(source_identity(config))
    if canonical_json(source_manifest["identity"]) != wanted:
        raise UserError(
            f"{source} was built from {canonical_json(source_manifest['identity'])}, not {wanted}"
        )
    identity = dataset_identity(config)
    splits = split(pool, config, str(source))
    sets, identifiers, more = task_of(config.task).sets(config, pool, splits)
    counts = {
        name: {"puzzles": len(members), "classes": len(np.unique(pool.classes[members]))}
        | {"ratings": histogram(pool.ratings[members])}
        for name, members in zip(SPLITS, (splits.train, splits.validation, splits.test))
    }
    document = {
        "format": 1,
        "kind": "dataset",
        "name": out.name,
        "identity": digest(identity),
        "config": identity,
        "task": config.task,
        "augmentations": config.augmentations,
        "seed": config.seed,
        "box_rows": identity.get("box_rows", 0),
        "box_cols": identity.get("box_cols", 0),
        "counts": counts,
        "left_out_to_keep_classes_apart": splits.left_out,
        "source": {
            key: value for key, value in source_manifest.items() if key not in ("names", "format", "kind")
        },
    }
    document |= more
    with new_folder(out) as folder:
        for name, puzzles in zip(SPLITS, sets):
            write_split(folder / name, puzzles)
        write_json(folder / "identifiers.json", identifiers, indent=None)
        write_manifest(folder, document)
    return document
