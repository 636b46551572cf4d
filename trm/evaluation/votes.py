"""ARC's scoring: the answers to all augmented copies of a test input vote for two attempts."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from trm.backends.base import Backend
from trm.evaluation.policies import pad_rows
from trm.model.inference import InferenceNetwork
from trm.study.tasks import spec_of
from trm.tasks.arc.augment import ArcAugmenter
from trm.tasks.arc.voting import solved, vote_rows
from trm.training.dataset import Dataset

ATTEMPTS = {"vote_first": 1, "vote": 2}
"""Attempts per test input by policy (ARC-AGI allows two)."""


def can_vote(dataset: Dataset) -> bool:
    """Whether the data set has ARC tasks that are augmented on the fly (otherwise each copy is a task of its own)."""
    test = dataset.split("test")
    return spec_of(test.meta.task).votes and bool(test.meta.identity) and test.groups == test.puzzles


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
        {"task": dataset.tasks[task], "inputs": int(size)} for task, size in zip(number, inputs)
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
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        made, _ = augmenter.canvases(rows[part], copies[part])
        x = net.embed(backend.place(torch.from_numpy(made)), backend.place(puzzle[part].contiguous()))
        x = pad_rows(net, x, size if start else 0)
        z_H, z_L = net.start(x.shape[1], len(x))
        for _ in range(depth):
            z_H, z_L, logits, halt = net.step(z_H, z_L, x)
            backend.synchronize()
        answers[part] = logits[:, : len(made)].argmax(-1).t().to(torch.uint8).cpu().numpy()
        halts[part] = halt[: len(made)].float().cpu().numpy()
    return answers, halts
