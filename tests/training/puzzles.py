"""A small real data set for the engine's tests: 4x4 Sudoku with unique answers, in the reference's file format."""

import itertools
from pathlib import Path

import numpy as np

from trm.data.dataset import Meta, one_example_set, write_split
from trm.data.files import write_manifest


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
    folder: Path, train: int = 40, validation: int = 8, test: int = 8, seed: int = 0, augmentations: int = 0
) -> Path:
    """A data set folder as `trm data build` makes it."""
    questions, answers = puzzles(train + validation + test, seed)
    meta = Meta("sudoku", seq_len=16, vocab_size=6, num_puzzle_identifiers=1)
    folder.mkdir(parents=True)
    first = 0
    for split, count in (("train", train), ("validation", validation), ("test", test)):
        part, first = slice(first, first + count), first + count
        write_split(folder / split, one_example_set(questions[part] + 1, answers[part] + 1, meta))
    document = {"format": 1, "kind": "dataset", "name": folder.name, "identity": f"test-{train}-{seed}"}
    document |= {"task": "sudoku", "augmentations": augmentations, "seed": seed, "box_rows": 2, "box_cols": 2}
    write_manifest(folder, document)
    return folder
