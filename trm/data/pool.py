"""A pool: all puzzles of a source with their classes, ratings and seeded split order."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trm.data import rng
from trm.data.files import load_npz, new_folder, read_manifest, save_npz, verify, write_manifest
from trm.errors import UserError

FREE, TRAIN, TEST = 0, 1, 2
"""`part` of a puzzle: free, or assigned to a split by the source."""


def parts_of(sizes: list[int], divided: bool) -> np.ndarray:
    """`part` of each puzzle of files of these sizes; `divided`: the files are the source's TRAIN and TEST."""
    return np.repeat(np.array([TRAIN, TEST] if divided else [FREE] * len(sizes), np.uint8), sizes)


@dataclass
class Pool:
    """Puzzles as tokens.

    questions, answers: uint8 [examples, cells]. The other arrays have one entry per puzzle. A puzzle has one example,
    unless `puzzle_indices` (int64 [puzzles + 1]) is given, as for ARC.
    """

    questions: np.ndarray
    answers: np.ndarray
    ratings: np.ndarray
    """Difficulty, int32: guesses (Sudoku, -1 unknown), cells of the shortest path (maze), 0 (ARC)."""
    classes: np.ndarray
    """int32: all puzzles of a class go to one split (9x9: solution grid; other Sudoku: puzzle; maze: maze)."""
    order: np.ndarray
    """int32: puzzle numbers in split order, those of a class adjacent."""
    part: np.ndarray
    """uint8: FREE, TRAIN or TEST."""
    puzzle_indices: np.ndarray | None = None
    example_part: np.ndarray | None = None
    """ARC, uint8 per example: TRAIN (demonstrations) or TEST (hidden grids)."""
    names: list[str] = field(default_factory=list)
    """ARC: task ids."""
    report: dict[str, Any] = field(default_factory=dict)
    """Entries of the manifest: counts, removed puzzles, histogram of ratings."""

    @property
    def puzzles(self) -> int:
        """Number of puzzles."""
        return len(self.part)


def make_pool(
    questions: np.ndarray,
    answers: np.ndarray,
    ratings: np.ndarray,
    report: dict[str, Any],
    classes: np.ndarray | None = None,
    order: np.ndarray | None = None,
    part: np.ndarray | None = None,
) -> Pool:
    """A pool of puzzles with one example each; by default each is a class, in this order, free to be split."""
    numbers = np.arange(len(questions), dtype=np.int32)
    classes = numbers if classes is None else classes
    order = numbers if order is None else order
    part = np.full(len(questions), FREE, dtype=np.uint8) if part is None else part
    report = {"classes": int(classes.max()) + 1, "ratings": histogram(ratings)} | report
    return Pool(questions, answers, ratings.astype(np.int32), classes, order, part, report=report)


def without_equivalents(numbers: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Which puzzles a pool keeps, bool [puzzles]: the first of each set of equivalent ones (equal `numbers`).

    A source's own test split is kept as it is, and equivalents of its puzzles are dropped from the rest.
    """
    keep = np.zeros(len(part), dtype=bool)
    keep[np.unique(numbers, return_index=True)[1]] = True
    tested = part == TEST
    if tested.any():
        keep &= ~np.isin(numbers, numbers[tested])
        keep |= tested
    return keep


_ARRAYS = ("questions", "answers", "ratings", "classes", "order", "part")
_OPTIONAL = ("puzzle_indices", "example_part")


def save_pool(pool: Pool, identity: dict[str, Any], folder: Path) -> None:
    """Write `puzzles.npz` and `manifest.json`. Raises UserError if the folder is not writable."""
    arrays = {name: getattr(pool, name) for name in (*_ARRAYS, *_OPTIONAL)}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    with new_folder(folder) as work:
        save_npz(work / "puzzles.npz", arrays)
        document = {
            "format": 1,
            "kind": "source",
            "identity": identity,
            "puzzles": pool.puzzles,
            **pool.report,
        }
        write_manifest(work, document | ({"names": pool.names} if pool.names else {}))


def load_pool(folder: Path) -> tuple[Pool, dict[str, Any]]:
    """A verified pool and its manifest.

    Raises:
        UserError: a file is missing, changed or not a pool.
    """
    manifest = read_manifest(folder, "source")
    verify(folder, manifest["sha256"], ["puzzles.npz"])
    arrays = load_npz(folder / "puzzles.npz")
    missing = [name for name in _ARRAYS if name not in arrays]
    if missing:
        raise UserError(
            f"{folder / 'puzzles.npz'} has no array {missing[0]}: delete the folder and build it again"
        )
    fields: dict[str, Any] = {name: arrays[name] for name in (*_ARRAYS, *_OPTIONAL) if name in arrays}
    return Pool(**fields, names=manifest.get("names", [])), manifest


def doubling_bins(values: np.ndarray) -> list[tuple[int, int]]:
    """Inclusive limits 0, 1, 2-3, 4-7, ... up to the largest value, preceded by -1 if any values are unknown."""
    limits = [(-1, -1)] if values.min() < 0 else []
    low, high = 0, 0
    while low <= values.max():
        limits.append((low, high))
        low, high = high + 1, 2 * high + 1
    return limits


def histogram(ratings: np.ndarray) -> dict[str, Any]:
    """Distribution of ratings for a manifest: counts in bins of doubling width, and quantiles."""
    known = ratings[ratings >= 0]
    if not len(known):
        return {"known": 0}
    limits = doubling_bins(known)
    counts = np.histogram(known, bins=[*(low for low, _ in limits), limits[-1][1] + 0.5])[0]
    bins = {
        (str(low) if low == high else f"{low}-{high}"): int(count)
        for (low, high), count in zip(limits, counts)
    }
    quantiles = np.quantile(known, [0, 0.25, 0.5, 0.75, 1]).tolist()
    return {
        "known": len(known),
        "mean": round(float(known.mean()), 4),
        "quartiles": quantiles,
        "counts": bins,
    }


def split_order(classes: np.ndarray, seed: int) -> np.ndarray:
    """Puzzle numbers in split order, int32: classes in random order regardless of size, and so the puzzles of each.

    Args:
        classes: int [puzzles], numbers 0, 1, ...
    """
    root = rng.root_key(seed, "split")
    count = int(classes.max()) + 1 if len(classes) else 0
    ranks = np.empty(count, dtype=np.int64)
    ranks[rng.shuffled(root, count)] = np.arange(count)
    own = rng.draw(rng.key(root, 1), np.arange(len(classes)))
    return np.lexsort((own, ranks[classes])).astype(np.int32)
