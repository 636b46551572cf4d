"""ARC's scoring: the answers to all augmented copies of a test input, transformed back, vote for two attempts."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trm.backends.base import Backend
from trm.data import rng
from trm.data.dataset import PuzzleSet
from trm.data.progress import Progress
from trm.evaluation.passes import Pass
from trm.model.inference import InferenceNetwork
from trm.study.tasks import spec_of
from trm.tasks.arc.arc import decode
from trm.tasks.arc.augment import ArcAugmenter, copy_transforms, undo
from trm.training.dataset import Dataset

ATTEMPTS = {"vote_first": 1, "vote": 2}
"""Attempts per test input by policy (ARC-AGI allows two)."""


def can_vote(dataset: Dataset) -> bool:
    """Whether the data set has ARC tasks that are augmented on the fly (otherwise each copy is a task of its own)."""
    test = dataset.split("test")
    return spec_of(test.meta.task).votes and bool(dataset.manifest) and test.groups == test.puzzles


@torch.no_grad()
def vote_results(
    net: InferenceNetwork,
    dataset: Dataset,
    copies: int | None,
    first: int | None,
    depth: int,
    flops: float,
    backend: Backend,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Results of both policies, and results per task.

    Args:
        copies: number of augmented copies that vote besides the original; None: all.
        first: number of tasks to evaluate; None: all.
        depth: supervision steps per answer.
        flops: FLOPs of one supervision step on one row.

    Returns:
        Rows in the format of evaluation.json's `results`, with tasks as puzzles: exact_accuracy is the mean fraction of
        a task's test inputs that are solved, correct the number of fully solved tasks. Then each task's name, number of
        test inputs and fraction solved.
    """
    started = time.monotonic()
    test = dataset.split("test") if first is None else dataset.split("test").first(first)
    augmenter = ArcAugmenter(test, shifted=False)
    count = 1 + min(test.meta.augmentations if copies is None else copies, test.meta.augmentations)
    share = np.arange(test.examples)[backend.worker :: backend.world]
    rows, copy = np.repeat(share, count), np.tile(np.arange(count), len(share))
    answers, halts = _answers(net, augmenter, rows, copy, test.meta.seq_len, depth, backend)
    ranked = vote_rows(test, rows, copy, answers, halts)
    number = (test.puzzle_identifiers.astype(np.int64) - 1) // (test.meta.augmentations + 1)
    inputs = np.diff(test.puzzle_indices)
    tasks: list[dict[str, Any]] = [
        {"task": dataset.manifest["tasks"][task], "inputs": int(size)} for task, size in zip(number, inputs)
    ]
    results = []
    for policy, attempts in ATTEMPTS.items():
        fraction = backend.total(torch.from_numpy(solved(test, ranked, attempts)))
        for task, value in zip(tasks, fraction.tolist()):
            task[policy] = round(value, 6)
        results.append(
            {"split": "test", "policy": policy, "steps": depth, "restarts": count}
            | {"puzzles": test.puzzles, "correct": int((fraction > 1 - 1e-6).sum())}
            | {"exact_accuracy": float(fraction.mean()), "accuracy": None, "blank_accuracy": None}
            | {"blank_error": None, "cross_entropy": None, "mean_steps": float(depth)}
            | {"flops_per_puzzle": flops * depth * count * test.examples / test.puzzles}
            | {"seconds": round(time.monotonic() - started, 3)}
        )
    return results, tasks


def _answers(
    net: InferenceNetwork,
    augmenter: ArcAugmenter,
    rows: np.ndarray,
    copies: np.ndarray,
    cells: int,
    depth: int,
    backend: Backend,
) -> tuple[np.ndarray, np.ndarray]:
    """Answers (tokens, uint8 [n, S]) and halt logits (float32 [n]) for copies of test inputs."""
    answers, halts = np.zeros((len(rows), cells), dtype=np.uint8), np.zeros(len(rows), dtype=np.float32)
    if not len(rows):
        return answers, halts
    puzzle = torch.from_numpy(augmenter.identifiers(rows, copies))
    size = net.batch_rows(cells + net.arch.puzzle_tokens)
    progress = Progress("" if backend.rank else "evaluating votes", len(rows), "copies")
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        made, _ = augmenter.canvases(rows[part], copies[part])
        inputs, ids = backend.place(torch.from_numpy(made)), backend.place(puzzle[part].contiguous())
        states = Pass(net, inputs, ids, rows=size if start else 0)
        for _ in range(depth):
            logits, halt = states.step()
            backend.synchronize()
        answers[part] = states.answers(logits).cpu().numpy()
        halts[part] = halt.float().cpu().numpy()
        progress.update(start + len(made))
    progress.close(len(rows))
    return answers, halts


@dataclass(frozen=True)
class Answer:
    """A candidate grid (colours 0-9), the number of predictions that agree on it, and their mean halt probability."""

    grid: np.ndarray
    votes: int
    confidence: float


def vote(grids: list[np.ndarray], halt_logits: list[float]) -> list[Answer]:
    """Distinct grids, sorted by votes, then by mean halt probability as in the reference, then by first appearance."""
    confidences = np.exp(-np.logaddexp(0.0, -np.array(halt_logits, dtype=np.float64)))  # no overflow
    members_of: dict[tuple[tuple[int, ...], bytes], list[int]] = {}
    for index, grid in enumerate(grids):
        members_of.setdefault((grid.shape, grid.tobytes()), []).append(index)
    answers = [
        Answer(grids[members[0]], len(members), float(confidences[members].mean()))
        for members in members_of.values()
    ]
    return sorted(answers, key=lambda answer: (-answer.votes, -answer.confidence))


def vote_rows(
    puzzles: PuzzleSet, rows: np.ndarray, copies: np.ndarray, predictions: np.ndarray, halt_logits: np.ndarray
) -> dict[int, list[Answer]]:
    """Ranked answers for each test input (row of `puzzles`).

    Args:
        puzzles: the originals of a test split.
        rows, copies: int [n], row and copy of each prediction.
        predictions: tokens [n, S].
        halt_logits: float [n].
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
            ballots[row][1].append(float(halt_logits[i]))
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
