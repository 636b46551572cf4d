"""ARC as it is scored: every augmented copy of a test input is answered, and the answers vote for two attempts."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from trm.devices.base import Backend
from trm.evaluation.policies import shared_out
from trm.network.inference import InferenceNetwork, inference_batch
from trm.study.tasks import spec_of
from trm.tasks.arc.augment import ArcAugmenter
from trm.tasks.arc.voting import solved, vote_rows
from trm.training.dataset import Dataset

ATTEMPTS = {"vote_first": 1, "vote": 2}
"""Policy -> answers that may be given for a test input (ARC-AGI: two)."""


def can_vote(dataset: Dataset) -> bool:
    """Whether the data set is of ARC tasks whose copies are made on the fly (written out, a copy is a task)."""
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
    """Results of both policies, and what became of each task.

    Args:
        copies: augmented copies that vote beside the original; None, or more than there are: all.
        first: tasks measured (None: all).
        depth: supervision steps of each answer.
        flops: of one supervision step on one row.

    Returns:
        Rows as in evaluation.json's `results`, where a puzzle is a task, exact_accuracy the mean share of a task's
        test inputs that are solved, correct the tasks solved whole; and each task's name, test inputs and shares.
    """
    begun = time.monotonic()
    test = dataset.split("test") if first is None else dataset.split("test").first(first)
    augmenter = ArcAugmenter(test, shifted=False)
    count = 1 + min(test.meta.augmentations if copies is None else copies, test.meta.augmentations)
    own = np.arange(test.examples)[backend.worker :: backend.world]
    rows, copy = np.repeat(own, count), np.tile(np.arange(count), len(own))
    answers, halts = _answers(net, augmenter, rows, copy, test.meta.seq_len, depth, backend)
    ranked = vote_rows(test, rows, copy, answers, halts)
    number = (test.puzzle_identifiers.astype(np.int64) - 1) // (test.meta.augmentations + 1)
    inputs = np.diff(test.puzzle_indices)
    tasks: list[dict[str, Any]] = [
        {"task": dataset.tasks[task], "inputs": int(size)} for task, size in zip(number, inputs)
    ]
    results = []
    for policy, attempts in ATTEMPTS.items():
        share = backend.total(torch.from_numpy(solved(test, ranked, attempts)))
        for task, value in zip(tasks, share.tolist()):
            task[policy] = round(value, 6)
        results.append(
            {"split": "test", "policy": policy, "steps": depth, "restarts": count}
            | {"puzzles": test.puzzles, "correct": int((share > 1 - 1e-6).sum())}
            | {"exact_accuracy": float(share.mean()), "accuracy": None, "blank_accuracy": None}
            | {"blank_error": None, "cross_entropy": None, "mean_steps": float(depth)}
            | {"flops_per_puzzle": flops * depth * count * test.examples / test.puzzles}
            | {"seconds": round(time.monotonic() - begun, 3)}
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
    """Answers (tokens uint8 [n, S]) and halt logits (float32 [n]) of copies of test inputs."""
    answers, halts = np.zeros((len(rows), cells), dtype=np.uint8), np.zeros(len(rows), dtype=np.float32)
    if not len(rows):
        return answers, halts
    puzzle = torch.from_numpy(augmenter.identifiers(rows, copies))
    size = inference_batch(cells + net.arch.puzzle_tokens, len(net.h_init), backend.device)
    size *= max(1, net.multiple // 2)
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        made, _ = augmenter.canvases(rows[part], copies[part])
        x = net.embed(backend.place(torch.from_numpy(made)), backend.place(puzzle[part].contiguous()))
        x = shared_out(net, x, size if start else 0)
        z_H, z_L = net.start(x.shape[1], len(x))
        for _ in range(depth):
            z_H, z_L, logits, halt = net.step(z_H, z_L, x)
            backend.synchronize()
        answers[part] = logits[:, : len(made)].argmax(-1).t().to(torch.uint8).cpu().numpy()
        halts[part] = halt[: len(made)].float().cpu().numpy()
    return answers, halts
