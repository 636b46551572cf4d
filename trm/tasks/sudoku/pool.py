"""Pools of Sudoku puzzles, generated offline or read from CSV files and validated."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trm.data import rng
from trm.data.csv_source import read_csv, refuse, refuse_characters
from trm.data.pool import Pool, make_pool, parts_of, split_order, without_equivalents
from trm.data.progress import Progress, over_rows
from trm.errors import UserError
from trm.study.schema import DataConfig
from trm.tasks.grids import number_rows
from trm.tasks.sudoku.classes import FOUR, class_keys, classes_4x4, pairs
from trm.tasks.sudoku.geometry import SYMBOLS, Geometry, broken_rule, sudoku_maps, symbol_values

TOKEN = 1
"""Token of a value: value + 1 (0 is padding)."""


def solve(
    geometry: Geometry, questions: np.ndarray, limit: int = 2
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Answers (values, uint8), number of solutions up to `limit` (int64), and ratings (guesses, int64)."""
    from trm.tasks.sudoku.kernels import solve_batch

    answers = np.zeros_like(questions)
    solutions, ratings = np.zeros(len(questions), dtype=np.int64), np.zeros(len(questions), dtype=np.int64)

    def work(start: int, stop: int) -> None:
        part = slice(start, stop)
        outputs = answers[part], solutions[part], ratings[part]
        solve_batch(questions[part], geometry.units, geometry.peers, limit, *outputs)

    over_rows(work, len(questions), 1024, "solving", "puzzles")
    return answers, solutions, ratings


def rate(geometry: Geometry, questions: np.ndarray) -> np.ndarray:
    """Ratings, int32 [puzzles]."""
    return solve(geometry, questions, limit=1)[2].astype(np.int32)


def generated_pool(config: DataConfig) -> Pool:
    """Puzzles with one solution, no two equivalent, in seeded order.

    Raises:
        UserError: there are not enough, or the config cannot be satisfied.
    """
    geometry = Geometry(config.box_rows, config.box_cols)
    questions, answers, removed = _enumerated(config) if geometry == FOUR else _random(geometry, config)
    return _pool(questions, answers, rate(geometry, questions), {"equivalent_removed": removed})


def _enumerated(config: DataConfig) -> tuple[np.ndarray, np.ndarray, int]:
    """4x4: one random member of every class; order and members depend on the seed."""
    questions, answers = classes_4x4(config.clues_min, config.clues_max)
    if len(questions) < max(config.pool, 1):
        clues = f"{config.clues_min}-{config.clues_max} clues" if config.clues_max else "minimal puzzles"
        raise UserError(
            f"there are only {len(questions)} classes of 4x4 Sudoku ({clues}), not {max(config.pool, 1)}: lower "
            "data.pool or widen data.clues_min..data.clues_max"
        )
    root = rng.root_key(config.seed, "generate")
    order = rng.shuffled(root, len(questions))[: config.pool or None]
    tokens, cells = sudoku_maps(FOUR, rng.key(root, order))
    rows = np.arange(len(order))[:, None]
    values = tokens[:, 1:] - np.uint8(TOKEN)
    moved = [values[rows, grids[order][rows, cells]] for grids in (questions, answers)]
    return moved[0], moved[1], 0


def _random(geometry: Geometry, config: DataConfig) -> tuple[np.ndarray, np.ndarray, int]:
    """Random puzzles without repeated classes; puzzle i depends only on (seed, i)."""
    root = rng.root_key(config.seed, "generate")
    wanted, progress = config.pool, Progress("generating", config.pool, "puzzles")
    questions = answers = np.empty((0, geometry.cells), dtype=np.uint8)
    keys: np.ndarray | None = None
    first = tried = 0
    while len(questions) < wanted:
        missing = wanted - len(questions)
        count = min(max(32, missing + missing // 16), 4096)
        new = _candidates(geometry, config, root, first, count)
        first += count
        tried += len(new[0])
        if first >= 4096 and tried * 100 < first:
            raise UserError(
                f"only {tried} of {first} random {geometry.side}x{geometry.side} puzzles had {config.clues_min}-"
                f"{config.clues_max} clues: raise data.clues_max"
            )
        new_keys = class_keys(geometry, *new)[1]
        questions, answers = np.concatenate([questions, new[0]]), np.concatenate([answers, new[1]])
        keys = new_keys if keys is None else np.concatenate([keys, new_keys])
        keep = np.sort(np.unique(number_rows(keys), return_index=True)[1])
        questions, answers, keys = questions[keep], answers[keep], keys[keep]
        if first > 64 * wanted + 4096 and len(keep) < wanted:
            raise UserError(
                f"only {len(keep)} classes of puzzles were found in {first} tries, not {wanted}: lower data.pool "
                "or widen data.clues_min..data.clues_max"
            )
        progress.update(min(len(questions), wanted))
    progress.close(wanted)
    return questions[:wanted], answers[:wanted], tried - len(questions)


def _candidates(
    geometry: Geometry, config: DataConfig, root: int, first: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Those of the random puzzles first..first+count-1 that have the right number of clues."""
    from trm.tasks.sudoku.generate_kernels import generate_batch

    questions = np.empty((count, geometry.cells), dtype=np.uint8)
    answers, reached = np.empty_like(questions), np.zeros(count, dtype=np.int64)

    def work(start: int, stop: int) -> None:
        arrays = [array[start:stop] for array in (questions, answers, reached)]
        limits = config.clues_min, config.clues_max
        generate_batch(np.uint64(root), first + start, *limits, geometry.units, geometry.peers, *arrays)

    over_rows(work, count, 64)
    keep = (reached <= config.clues_max) | (config.clues_max == 0)
    return questions[keep], answers[keep]


def csv_pool(config: DataConfig, files: list[tuple[str, Path]], divided: bool = False) -> Pool:
    """The validated puzzles of CSV files; of equivalent ones the first is kept.

    Args:
        files: name and path of each; if `divided`, the training and the test puzzles of a published data set, whose
            checksum guarantees unique solutions.

    Raises:
        UserError: a puzzle is malformed; the message has file and line.
    """
    geometry = Geometry(config.box_rows, config.box_cols)
    read = []
    for name, path in files:
        check = partial(check_values, geometry, name)
        questions, answers, ratings = read_csv(path, geometry.cells, check, name)
        if not divided:
            ratings = check_unique(geometry, questions, ratings, name)
        read.append((questions, answers, ratings))
    part = parts_of([len(arrays[2]) for arrays in read], divided)
    questions, answers, ratings = (np.concatenate(arrays) for arrays in zip(*read))
    del read  # the published set has 4.3 million puzzles
    return read_pool(geometry, config.seed, questions, answers, ratings, part)


def check_values(
    geometry: Geometry, name: str, questions: np.ndarray, answers: np.ndarray, lines: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Values of the characters of a CSV file, in its `lines`.

    Raises:
        UserError: an invalid character, or an answer that breaks a rule or contradicts a clue.
    """
    table = symbol_values(geometry.side)
    for column, texts in (("question", questions), ("answer", answers)):
        wrong = table[texts] == 255
        if column == "answer":
            wrong |= table[texts] == 0
        refuse_characters(wrong, texts, column, f"digits up to {SYMBOLS[geometry.side - 1]}", name, lines)
    questions, answers = table[questions], table[answers]
    contradicts = ((questions > 0) & (questions != answers)).any(axis=1)
    broken = broken_rule(geometry, answers)
    advice = (
        "the puzzle has no solution: remove it",
        "the solution is another one: correct it",
        "the puzzle has more than one solution: remove it",
    )

    def verdict(at: int) -> str:
        what = "repeats a digit in a row, column or box" if broken[at] else "contradicts a clue"
        return f"the answer {what}; {advice[int(solve(geometry, questions[at : at + 1])[1][0])]}"

    refuse(contradicts | broken, name, lines, verdict)
    return questions, answers


def check_unique(geometry: Geometry, questions: np.ndarray, ratings: np.ndarray, name: str) -> np.ndarray:
    """The ratings, missing ones (-1) computed by our solver. Raises UserError for a puzzle with several solutions."""
    _, solutions, own = solve(geometry, questions)
    lines = np.arange(2, 2 + len(questions))
    refuse(solutions != 1, name, lines, lambda at: "the puzzle has more than one solution: remove it")
    return np.where(ratings < 0, own, ratings).astype(np.int32)


def read_pool(
    geometry: Geometry,
    seed: int,
    questions: np.ndarray,
    answers: np.ndarray,
    ratings: np.ndarray,
    part: np.ndarray,
) -> Pool:
    """A pool of validated puzzles (values) without equivalent ones."""
    puzzles, classes = (number_rows(keys) for keys in class_keys(geometry, questions, answers))
    keep = without_equivalents(puzzles, part)
    report = {
        "read": len(part),
        "puzzle_classes": int(puzzles.max()) + 1,
        "equivalent_puzzle_pairs": pairs(puzzles),
        "equivalent_solution_grid_pairs": pairs(classes) if geometry.side == 9 else None,
        "equivalent_removed": int((~keep).sum()),
    }
    if not keep.all():
        questions, answers, ratings, part = questions[keep], answers[keep], ratings[keep], part[keep]
        classes = np.unique(classes[keep], return_inverse=True)[1].astype(np.int32)
    return _pool(questions, answers, ratings, report, classes, split_order(classes, seed), part)


def _pool(
    questions: np.ndarray,
    answers: np.ndarray,
    ratings: np.ndarray,
    report: dict[str, Any],
    *split: np.ndarray,
) -> Pool:
    """A pool of values, converted to tokens; `split`: classes, order and part of `make_pool`."""
    clues = np.bincount((questions > 0).sum(axis=1))
    report |= {
        "class_of": "solution grid" if questions.shape[1] == 81 else "puzzle",
        "clues": {str(number): int(count) for number, count in enumerate(clues) if count},
    }
    questions += np.uint8(TOKEN)  # in place: the official pool has 4.3 million
    answers += np.uint8(TOKEN)
    return make_pool(questions, answers, ratings, report, *split)
