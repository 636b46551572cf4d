"""Describe a data set or a pool, with samples as text."""

from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from trm.data import rng
from trm.data.dataset import SPLITS, Meta, load
from trm.data.files import MANIFEST, read_manifest
from trm.data.pool import load_pool
from trm.errors import UserError
from trm.io import read_json
from trm.tasks import marginals, task_of

BAR = 40
"""Characters of the longest bar of a histogram."""
COUNTS = ("read", "equivalent_removed", "one_shortest_path", "training_tasks", "test_tasks")


def describe(directory: Path, samples: int = 2) -> str:
    """Identity, counts, difficulty and `samples` random puzzles of each split.

    Raises:
        UserError: the folder is neither a data set nor a pool, or a file is damaged.
    """
    if not directory.is_dir():
        raise UserError(f"{directory} is not a folder: give a data set or a pool")
    kind = ""
    if (directory / MANIFEST).exists():
        document = read_json(directory / MANIFEST)
        kind = document.get("kind", "") if isinstance(document, dict) else ""
    if kind == "source":
        return _pool(directory, samples)
    if not any((directory / name).is_dir() for name in SPLITS):
        raise UserError(
            f"{directory} is neither a data set nor a pool: it has neither {MANIFEST} nor a folder `train`"
        )
    manifest = read_manifest(directory, "dataset") if kind else {}
    lines = _heading(directory, manifest)
    for name in SPLITS:
        if not (directory / name).is_dir():
            continue
        puzzles = load(directory, name)
        counts = manifest.get("counts", {}).get(name, {})
        classes = f" in {counts['classes']:,} classes" if counts else ""
        lines.append(
            f"\n{name}: {puzzles.groups:,} originals{classes}, {puzzles.puzzles:,} puzzles, {puzzles.examples:,} rows"
        )
        lines += _histogram(counts.get("ratings", {}), puzzles.meta.task)
        meta = puzzles.meta
        lines += _marginals(puzzles.inputs, puzzles.puzzle_of_example, meta)
        lines += _samples(puzzles.inputs, puzzles.labels, samples, meta)
    return "\n".join(lines)


def _heading(directory: Path, manifest: dict[str, Any]) -> list[str]:
    if not manifest:
        return [f"{directory}: built by other tools (no {MANIFEST}); checked only for consistency"]
    source = manifest.get("source", {})
    lines = [
        f"{manifest['name']}: {manifest['task']}, identity {manifest['identity'][:16]}, checksums verified",
        f"  seed {manifest['seed']}, {manifest['augmentations']} copies of each training puzzle made on the fly",
        f"  left out to keep classes together: {manifest.get('left_out_to_keep_classes_apart', 0)}",
    ]
    keys = ("repository", "revision", *COUNTS)
    return lines + [f"  source {key}: {source[key]}" for key in keys if source.get(key) is not None]


def _pool(directory: Path, samples: int) -> str:
    pool, manifest = load_pool(directory)
    identity = manifest["identity"]
    lines = [
        f"{directory.name}: pool of {pool.puzzles:,} puzzles in {manifest['classes']:,} classes, checksums verified"
    ]
    lines += [f"  {key}: {value}" for key, value in identity.items()]
    lines += [f"  {key}: {manifest[key]}" for key in COUNTS if key in manifest]
    lines += _histogram(manifest.get("ratings", {}), identity["task"])
    examples = (
        np.ones(pool.puzzles, np.int64) if pool.puzzle_indices is None else np.diff(pool.puzzle_indices)
    )
    boxes = {name: identity.get(name, 0) for name in ("box_rows", "box_cols")}
    meta = Meta(identity["task"], pool.questions.shape[1], int(pool.answers.max()) + 1, 1, **boxes)
    lines += _marginals(pool.questions, np.repeat(np.arange(pool.puzzles), examples), meta)
    rows = np.arange(pool.puzzles) if pool.puzzle_indices is None else pool.puzzle_indices[:-1]
    return "\n".join(lines + _samples(pool.questions[rows], pool.answers[rows], samples, meta))


def _histogram(ratings: dict[str, Any], task: str) -> list[str]:
    if not ratings.get("known"):
        return []
    unit = task_of(task).rating
    low, _, middle, _, high = ratings["quartiles"]
    counts = {label: count for label, count in ratings["counts"].items() if count}
    most = max(counts.values())
    lines = [f"  {unit}: mean {ratings['mean']:.1f}, median {middle:g}, {low:g} to {high:g}"]
    return lines + [
        f"  {label:>11} {count:>9,} {'#' * max(1, round(BAR * count / most))}"
        for label, count in counts.items()
    ]


def _marginals(inputs: np.ndarray, puzzle: np.ndarray, meta: Meta) -> list[str]:
    kind = task_of(meta.task).symmetric(meta)
    return marginals.describe(inputs, puzzle, kind) if kind else []


def _samples(questions: np.ndarray, answers: np.ndarray, samples: int, meta: Meta) -> list[str]:
    """Random questions with their answers beside them."""
    lines = []
    chosen = rng.shuffled(rng.root_key(0, "inspect"), len(questions))[:samples]
    for row in np.sort(chosen).tolist():
        left, right = (task_of(meta.task).lines(tokens[row], meta) for tokens in (questions, answers))
        width = max(len(line) for line in left)
        lines += ["", f"  row {row}"]
        lines += [f"    {a:<{width}}    {b}".rstrip() for a, b in zip_longest(left, right, fillvalue="")]
    return lines
