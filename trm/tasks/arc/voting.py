"""Answers to ARC tasks by vote: predictions for augmented copies of a test input are transformed back and counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trm.data import rng
from trm.data.dataset import PuzzleSet
from trm.tasks.arc.arc import decode
from trm.tasks.arc.augment import copy_transforms, undo


@dataclass(frozen=True)
class Answer:
    """A candidate grid (colours 0-9), the number of predictions that agree on it, and their mean confidence."""

    grid: np.ndarray
    votes: int
    confidence: float


def vote(grids: list[np.ndarray], confidences: list[float]) -> list[Answer]:
    """Distinct grids, sorted by votes, then by mean confidence, then by first appearance."""
    members_of: dict[tuple[tuple[int, ...], bytes], list[int]] = {}
    for index, grid in enumerate(grids):
        members_of.setdefault((grid.shape, grid.tobytes()), []).append(index)
    answers = [
        Answer(grids[members[0]], len(members), float(np.mean([confidences[i] for i in members])))
        for members in members_of.values()
    ]
    return sorted(answers, key=lambda answer: (-answer.votes, -answer.confidence))


def vote_rows(
    puzzles: PuzzleSet, rows: np.ndarray, copies: np.ndarray, predictions: np.ndarray, confidences: np.ndarray
) -> dict[int, list[Answer]]:
    """Ranked answers for each test input (row of `puzzles`).

    Args:
        puzzles: the originals of a test split.
        rows, copies: int [n], row and copy of each prediction.
        predictions: tokens [n, S].
        confidences: float [n], e.g. the halt logit.
    """
    meta = puzzles.meta
    root = rng.root_key(meta.seed, "augment")
    identifiers = puzzles.puzzle_identifiers[puzzles.puzzle_of_example[rows]]
    tasks = (identifiers.astype(np.int64) - 1) // (meta.augmentations + 1)
    turns, colours, _ = copy_transforms(root, tasks, np.asarray(copies))
    ballots: dict[int, tuple[list[np.ndarray], list[float]]] = {int(row): ([], []) for row in rows}
    for i, row in enumerate(rows.tolist()):
        grid = decode(predictions[i])
        if grid is not None:
            ballots[row][0].append(np.ascontiguousarray(undo(grid, int(turns[i]), colours[i])))
            ballots[row][1].append(float(confidences[i]))
    return {row: vote(*ballot) for row, ballot in ballots.items()}


def solved(puzzles: PuzzleSet, answers: dict[int, list[Answer]], attempts: int = 2) -> np.ndarray:
    """Share of each task's test inputs with the solution among the first `attempts` answers: float64 [puzzles]."""
    right = np.zeros(puzzles.examples)
    for row in range(puzzles.examples):
        solution = decode(puzzles.labels[row])
        assert solution is not None
        candidates = answers.get(row, [])[:attempts]
        right[row] = any(np.array_equal(answer.grid, solution) for answer in candidates)
    return np.add.reduceat(right, puzzles.puzzle_indices[:-1]) / np.diff(puzzles.puzzle_indices)
