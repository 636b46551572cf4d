"""Pools of Sudoku: generated offline, or read from CSV files and checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trm.data import rng
from trm.data.csv_source import read_csv, refuse
from trm.data.parallel import over_rows
from trm.data.pool import FREE, TEST, Pool, group_by_class, histogram, number_rows
from trm.data.progress import Progress
from trm.data.sudoku import Geometry, broken_rule, symbol_values
from trm.data.sudoku_small import FOUR, canonical_small, classes_4x4
from trm.errors import UserError
from trm.study.schema import DataConfig

TOKEN = 1
"""Token of a value: value + 1 (0 is padding)."""


def puzzle_classes(geometry: Geometry, questions: np.ndarray) -> np.ndarray:
    """Numbers of the classes of equivalent puzzles, int32 [puzzles]: equal exactly for equivalent ones where all
    symmetries can be tried or solved for (4x4, 6x6; 9x9 has `canonical`)."""
    if geometry == FOUR:
        return number_rows(canonical_small(geometry, questions))
    from trm.data.kernels import canonical_batch

    forms = np.empty_like(questions)

    def work(start: int, stop: int) -> None:
        canonical_batch(questions[start:stop], geometry.cell_symmetries, forms[start:stop])

    over_rows(work, len(questions), 256, "classes", "puzzles")
    return number_rows(forms)


def solve(
    geometry: Geometry, questions: np.ndarray, limit: int = 2
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Answers (values, uint8), solutions counted up to `limit` (int64), and ratings (guesses, int64) of questions."""
    from trm.data.kernels import solve_batch

    answers = np.zeros_like(questions)
    solutions, ratings = np.zeros(len(questions), dtype=np.int64), np.zeros(len(questions), dtype=np.int64)

    def work(start: int, stop: int) -> None:
        part = slice(start, stop)
        solve_batch(
            questions[part],
            geometry.units,
            geometry.peers,
            limit,
            answers[part],
            solutions[part],
            ratings[part],
        )

    over_rows(work, len(questions), 1024, "solving", "puzzles")
    return answers, solutions, ratings


def check_csv(
    geometry: Geometry, questions: np.ndarray, answers: np.ndarray, name: str, unique: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Values of a CSV file's characters, and ratings where `unique` had every puzzle solved (else None).

    Raises:
        UserError: naming file and line of the first puzzle with a wrong character, an answer that breaks a rule or
            contradicts a clue, no solution or several.
    """
    table = symbol_values(geometry.side)
    for column, texts in (("question", questions), ("answer", answers)):
        wrong = table[texts] == 255 if column == "question" else (table[texts] == 255) | (table[texts] == 0)

        def sentence(
            at: int, column: str = column, texts: np.ndarray = texts, wrong: np.ndarray = wrong
        ) -> str:
            cell = int(wrong[at].argmax())
            return f"the {column} has {chr(texts[at, cell])!r} at character {cell + 1}: only digits may stand there"

        refuse(wrong.any(axis=1), name, sentence)
    questions, answers = table[questions], table[answers]
    refuse(
        ((questions > 0) & (questions != answers)).any(axis=1),
        name,
        lambda at: "the answer contradicts a clue of the question" + _verdict(geometry, questions[at]),
    )
    refuse(
        broken_rule(geometry, answers),
        name,
        lambda at: "the answer repeats a digit in a row, column or box" + _verdict(geometry, questions[at]),
    )
    if not unique:
        return questions, answers, None
    _, solutions, ratings = solve(geometry, questions)
    refuse(solutions != 1, name, lambda at: "the puzzle has more than one solution: remove it")
    return questions, answers, ratings.astype(np.int32)


def _verdict(geometry: Geometry, question: np.ndarray) -> str:
    count = int(solve(geometry, question[None])[1][0])
    words = {0: " (the puzzle has no solution): remove it", 1: ": correct the answer"}
    return words.get(count, " (the puzzle has more than one solution): remove it")


def generated_pool(config: DataConfig) -> Pool:
    """Puzzles with one solution, each of another class, in an order of the seed.

    Raises:
        UserError: when there are not that many, or the demands cannot be met.
    """
    geometry = Geometry(config.box_rows, config.box_cols)
    if geometry == FOUR:
        questions, answers, classes, tried = _enumerated(config)
    else:
        questions, answers, classes, tried = _random(geometry, config)
    ratings = solve_ratings(geometry, questions)
    count = len(questions)
    clues = np.bincount((questions > 0).sum(axis=1))
    report = {
        "classes": len(np.unique(classes)),
        "equivalent_removed": tried - count,
        "ratings": histogram(ratings),
        "clues": {str(number): int(found) for number, found in enumerate(clues) if found},
    }
    return Pool(
        questions=questions + np.uint8(TOKEN),
        answers=answers + np.uint8(TOKEN),
        ratings=ratings,
        classes=classes,
        order=np.arange(count, dtype=np.int32),
        part=np.full(count, FREE, dtype=np.uint8),
        report=report,
    )


def solve_ratings(geometry: Geometry, questions: np.ndarray) -> np.ndarray:
    """Ratings, int32; puzzles that singles alone solve (nearly all 4x4) need no compiled code."""
    ratings = np.zeros(len(questions), dtype=np.int32)
    rest = (
        np.flatnonzero(~solved_by_singles(geometry, questions))
        if geometry == FOUR
        else np.arange(len(questions))
    )
    if len(rest):
        ratings[rest] = solve(geometry, questions[rest], limit=1)[2]
    return ratings


def solved_by_singles(geometry: Geometry, questions: np.ndarray) -> np.ndarray:
    """Whether naked and hidden singles alone solve each puzzle: bool [puzzles]. All puzzles at once, no compiled code."""
    side, cells = geometry.side, geometry.cells
    member = np.zeros((len(geometry.units), cells), dtype=np.int16)
    np.put_along_axis(member, geometry.units.astype(np.int64), 1, axis=1)
    sees = (member.T @ member > 0) & ~np.eye(cells, dtype=bool)
    shown = questions[:, :, None] == np.arange(1, side + 1)
    can = shown | (questions == 0)[:, :, None]  # [puzzles, cells, values]
    while True:
        single = can & (can.sum(axis=2, keepdims=True) == 1)
        seen = np.einsum("cd,pdv->pcv", sees.astype(np.int16), single.astype(np.int16)) > 0
        after = can & ~seen
        places = np.einsum("uc,pcv->puv", member, after.astype(np.int16)) == 1
        hidden = after & (np.einsum("uc,puv->pcv", member, places.astype(np.int16)) > 0)
        after = np.where(hidden.any(axis=2, keepdims=True), hidden, after)
        if (after == can).all():
            return (can.sum(axis=2) == 1).all(axis=1)
        can = after


def _enumerated(config: DataConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """4x4: every class once, each shown by a random member; order and members by the seed."""
    from trm.data.augment import sudoku_maps

    questions, answers = classes_4x4(config.clues_min, config.clues_max)
    if config.min_rating:
        keep = solve_ratings(FOUR, questions) >= config.min_rating
        questions, answers = questions[keep], answers[keep]
    if len(questions) < max(config.pool, 1):
        clues = f"{config.clues_min}-{config.clues_max} clues" if config.clues_max else "minimal puzzles"
        raise UserError(
            f"there are only {len(questions)} classes of 4x4 Sudoku ({clues}, rating at least {config.min_rating}), "
            f"not {max(config.pool, 1)}: lower data.pool or widen data.clues_min..data.clues_max"
        )
    root = rng.root_key(config.seed, "generate")
    order = rng.shuffled(root, len(questions))[: config.pool or None]
    values, cells = sudoku_maps(FOUR, rng.key(root, order))
    rows = np.arange(len(order))[:, None]
    values = values[:, 1:] - np.uint8(1)  # tokens back to values
    moved = [values[rows, grids[order][rows, cells]] for grids in (questions, answers)]
    return moved[0], moved[1], np.arange(len(order), dtype=np.int32), len(order)


def _random(geometry: Geometry, config: DataConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Random grids, clues removed; puzzle i depends on (seed, i) alone, equivalents of earlier ones are left out."""
    root = rng.root_key(config.seed, "generate")
    wanted = config.pool
    questions = np.empty((0, geometry.cells), dtype=np.uint8)
    answers, progress = questions, Progress("generating", wanted, "puzzles")
    forms = classes = np.empty(0, dtype=np.int32)
    first = tried = 0
    while len(questions) < wanted:
        count = min(max(64, wanted - len(questions) + (wanted - len(questions)) // 16), 4096)
        new_questions, new_answers = _candidates(geometry, config, root, first, count)
        first += count
        tried += len(new_questions)
        if first >= 4096 and tried * 200 < first:
            raise UserError(
                f"only {tried} of {first} random puzzles had {config.clues_min}-{config.clues_max} clues and a rating "
                f"of at least {config.min_rating}: raise data.clues_max or lower data.min_rating"
            )
        questions, answers = (
            np.concatenate([questions, new_questions]),
            np.concatenate([answers, new_answers]),
        )
        classes = classify(geometry, questions, answers)[1]
        forms = np.unique(classes, return_index=True)[1]
        forms.sort()
        if first > 64 * wanted + 4096 and len(forms) < wanted:
            raise UserError(
                f"only {len(forms)} different puzzles were found in {first} tries, not {wanted}: lower data.pool "
                "or widen data.clues_min..data.clues_max"
            )
        questions, answers, classes = questions[forms], answers[forms], classes[forms]
        progress.update(min(len(questions), wanted))
    progress.close(wanted)
    return questions[:wanted], answers[:wanted], number_rows(classes[:wanted, None]), tried


def classify(geometry: Geometry, questions: np.ndarray, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of each puzzle's class of equivalent puzzles, and of the class that decides its split (int32 each): that
    of its solution grid for 9x9, of the puzzle itself for other sizes."""
    puzzles = puzzle_classes(geometry, questions)
    return puzzles, puzzles


def _candidates(
    geometry: Geometry, config: DataConfig, root: int, first: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Random puzzles first..first+count-1 that meet the demands on clues and rating."""
    from trm.data.kernels import generate_batch

    questions = np.empty((count, geometry.cells), dtype=np.uint8)
    answers, clues = np.empty_like(questions), np.empty(count, dtype=np.int64)

    def work(start: int, stop: int) -> None:
        part = slice(start, stop)
        generate_batch(
            np.uint64(root), first + start, config.clues_min, config.clues_max,
            geometry.units, geometry.peers, questions[part], answers[part], clues[part],
        )  # fmt: skip

    over_rows(work, count, 64, "generating", "candidates")
    keep = (clues <= config.clues_max) | (config.clues_max == 0)
    if config.min_rating:
        keep &= solve(geometry, questions, limit=1)[2] >= config.min_rating
    return questions[keep], answers[keep]


def csv_pool(config: DataConfig, files: list[tuple[str, Path]]) -> Pool:
    """The puzzles of CSV files (name and path of each), checked; of equivalent ones the first is kept.

    Raises:
        UserError: naming file and line of what is malformed.
    """
    geometry = Geometry(config.box_rows, config.box_cols)
    parts = []
    for name, path in files:
        texts = read_csv(path, geometry.cells, name)
        questions, answers, ratings = check_csv(geometry, *texts[:2], name)
        parts.append((questions, answers, np.where(texts[2] < 0, ratings, texts[2])))
    questions, answers, ratings = (np.concatenate(arrays) for arrays in zip(*parts))
    part = np.full(len(questions), FREE, dtype=np.uint8)
    return read_pool(config, questions, answers, ratings, part)


def read_pool(
    config: DataConfig, questions: np.ndarray, answers: np.ndarray, ratings: np.ndarray, part: np.ndarray
) -> Pool:
    """A pool of checked puzzles (values) that come in no random order.

    Of equivalent puzzles the first is kept; puzzles of a source's own test part stay as they are, and those equivalent
    to one of them are left out of the rest.
    """
    geometry = Geometry(config.box_rows, config.box_cols)
    puzzles, classes = classify(geometry, questions, answers)
    keep = _first_of_each(puzzles, part)
    report = {
        "read": len(part),
        "equivalent_puzzle_classes": int(puzzles.max()) + 1,
        "equivalent_puzzle_pairs": _pairs(puzzles),
        "solution_grid_pairs": _pairs(classes) if geometry.side == 9 else None,
        "equivalent_removed": int((~keep).sum()),
    }
    questions, answers, ratings, part = questions[keep], answers[keep], ratings[keep], part[keep]
    classes = number_rows(classes[keep, None])
    count = len(part)
    ranks = np.empty(count, dtype=np.int64)
    ranks[rng.shuffled(rng.root_key(config.seed, "split"), count)] = np.arange(count)
    clues = np.bincount((questions > 0).sum(axis=1))
    report |= {
        "classes": int(classes.max()) + 1,
        "ratings": histogram(ratings),
        "clues": {str(number): int(found) for number, found in enumerate(clues) if found},
    }
    return Pool(
        questions=questions + np.uint8(TOKEN),
        answers=answers + np.uint8(TOKEN),
        ratings=ratings.astype(np.int32),
        classes=classes,
        order=group_by_class(classes, ranks),
        part=part,
        report=report,
    )


def _first_of_each(puzzles: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Which puzzles to keep: all of the source's test part, else the first of its class and none that is tested on."""
    keep = np.zeros(len(part), dtype=bool)
    keep[np.unique(puzzles, return_index=True)[1]] = True
    tested = part == TEST
    if tested.any():
        keep &= ~np.isin(puzzles, puzzles[tested])
        keep |= tested
    return keep


def _pairs(classes: np.ndarray) -> int:
    """Pairs of members of one class."""
    counts = np.bincount(classes).astype(np.int64)
    return int((counts * (counts - 1) // 2).sum())
