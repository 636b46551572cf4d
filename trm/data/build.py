"""A data set from a pool: the splits are cut, checked and written with a manifest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trm.data import hints, rng
from trm.data.dataset import SPLITS, Meta, PuzzleSet, one_example_set, write_split
from trm.data.files import new_folder, write_manifest
from trm.data.pool import Pool, histogram, load_pool
from trm.data.splits import Splits, split
from trm.errors import UserError
from trm.io import write_json
from trm.study.dataset_identity import dataset_identity, shape, source_identity
from trm.study.fingerprint import canonical_json, digest
from trm.study.schema import DataConfig
from trm.tasks.arc import dataset as arc_dataset


def build_dataset(config: DataConfig, source: Path, out: Path) -> dict[str, Any]:
    """Cut a data set from a pool and write it; returns its manifest.

    Raises:
        UserError: for a pool of another source, one too small, a damaged one, or a place that cannot be written.
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
    if config.task == "arc":
        sets, tasks = arc_dataset.puzzle_sets(pool, splits, config.augmentations, config.seed)
        nothing = [np.zeros(puzzles.groups, dtype=np.int32) for puzzles in sets]
        sets = [replace(puzzles, ratings=zeros, sources=zeros) for puzzles, zeros in zip(sets, nothing)]
        identifiers = list(arc_dataset.identifier_names(tasks, config.augmentations, config.seed))
    else:
        sets, tasks, identifiers = _puzzle_sets(pool, config, splits), [], ["<blank>"]
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
        "box_rows": config.box_rows if config.task == "sudoku" else 0,
        "box_cols": config.box_cols if config.task == "sudoku" else 0,
        "counts": counts,
        "left_out_to_keep_classes_apart": splits.left_out,
        "source": {
            key: value for key, value in source_manifest.items() if key not in ("names", "format", "kind")
        },
    }
    if tasks:
        document["tasks"] = tasks
    with new_folder(out) as folder:
        for name, puzzles in zip(SPLITS, sets):
            write_split(folder / name, puzzles)
        write_json(folder / "identifiers.json", identifiers, indent=None)
        write_manifest(folder, document)
    return document


def _puzzle_sets(pool: Pool, config: DataConfig, splits: Splits) -> list[PuzzleSet]:
    sizes = shape(config)
    meta = Meta(config.task, sizes.seq_len, sizes.vocab_size, sizes.num_puzzle_identifiers or 1)

    def questions(members: np.ndarray, held_out: bool) -> np.ndarray:
        found = pool.questions[members]
        if not held_out or config.held_out_hints == (0, 0):
            return found
        keys = rng.key(rng.root_key(config.seed, "held out"), members)
        return hints.give(found, pool.answers[members], keys, config.held_out_hints)

    return [
        replace(
            one_example_set(questions(members, held_out), pool.answers[members], meta),
            ratings=pool.ratings[members],
            sources=(np.zeros(pool.puzzles, np.int32) if pool.sources is None else pool.sources)[members],
        )
        for members, held_out in ((splits.train, False), (splits.validation, True), (splits.test, True))
    ]
