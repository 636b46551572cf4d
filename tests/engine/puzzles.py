"""A small real data set for the engine's tests: 4x4 Sudoku with unique answers, in the reference's file format."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np


def grids() -> np.ndarray:
    """All 288 finished 4x4 Sudoku, values 1..4, uint8 [288, 16]."""
    rows = list(itertools.permutations((1, 2, 3, 4)))
    bands = [a + b for a, b in itertools.product(rows, rows) if not {*a[:2]} & {*b[:2]}]
    pairs = itertools.product(bands, bands)
    found = [
        top + low
        for top, low in pairs
        if all(len({top[c], top[c + 4], low[c], low[c + 4]}) == 4 for c in range(4))
    ]
    return np.array(found, dtype=np.uint8)


def puzzles(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Questions (0: blank) and their only answers, uint8 [count, 16]."""
    rng, solved = np.random.default_rng(seed), grids()
    questions, answers = [], []
    while len(questions) < count:
        answer = solved[rng.integers(len(solved))]
        given = rng.permutation(16)[: rng.integers(6, 10)]
        if (solved[:, given] == answer[given]).all(1).sum() == 1:
            question = np.zeros(16, dtype=np.uint8)
            question[given] = answer[given]
            questions.append(question)
            answers.append(answer)
    return np.array(questions), np.array(answers)


def write_dataset(
    folder: Path, train: int = 200, validation: int = 40, test: int = 60, seed: int = 0
) -> Path:
    """A data set folder as `trm data build` makes it."""
    questions, answers = puzzles(train + validation + test, seed)
    first = 0
    for split, count in (("train", train), ("validation", validation), ("test", test)):
        part, first = slice(first, first + count), first + count
        path = folder / split
        path.mkdir(parents=True)
        index = np.arange(count + 1, dtype=np.int32)
        arrays = {
            "inputs": questions[part] + 1,
            "labels": answers[part] + 1,
            "puzzle_identifiers": np.zeros(count, dtype=np.int32),
            "puzzle_indices": index,
            "group_indices": index,
        }
        for name, array in arrays.items():
            np.save(path / f"all__{name}.npy", array)
        meta = {
            "pad_id": 0,
            "ignore_label_id": 0,
            "blank_identifier_id": 0,
            "vocab_size": 6,
            "seq_len": 16,
            "num_puzzle_identifiers": 1,
            "total_groups": count,
            "mean_puzzle_examples": 1.0,
            "total_puzzles": count,
            "sets": ["all"],
        }
        (path / "dataset.json").write_text(json.dumps(meta))
    (folder / "identifiers.json").write_text('["<blank>"]')
    manifest = {
        "format": 1,
        "kind": "dataset",
        "identity": {"task": "sudoku", "seed": seed, "train_puzzles": train},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
