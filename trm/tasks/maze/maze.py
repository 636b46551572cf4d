"""Mazes, generated offline with long shortest paths or read from CSV files in the official format.

A maze is a square of characters, row by row: `#` wall, blank open, `S` start, `G` goal, and in the answer `o` on the
shortest path between them; tokens are 1-5 in that order. Equivalent mazes (8 symmetries of the square) are one class.
"""

from functools import partial
from pathlib import Path

import numpy as np

from trm.data import rng
from trm.data.csv_source import read_csv, refuse, refuse_characters
from trm.data.pool import Pool, make_pool, parts_of, split_order, without_equivalents
from trm.data.progress import Progress, over_rows
from trm.errors import UserError
from trm.study.schema import DataConfig
from trm.tasks.grids import dihedral_cells, number_rows
from trm.tasks.maze.spec import CHARACTERS, GOAL, OPEN, PATH, START, WALL

TRIES = 20_000
"""Attempts per maze; about one in 60 random 30x30 mazes has a path of 110 cells."""
MOST_MADE = 20
"""Mazes generated for each one requested before giving up for lack of different ones."""
WALLS = ("random", "depth_first", "uniform")
"""Kinds of walls by their number in the kernels."""


def generated_pool(config: DataConfig) -> Pool:
    """Mazes whose shortest path has at least `min_path` cells, start and goal included, no two equivalent; of perfect
    ones no two have equivalent walls, so that no split has walls of another.

    Raises:
        UserError: mazes of this size almost never have such a long path, or are too few.
    """
    side, wanted, perfect = config.maze_size, config.pool, config.walls != "random"
    kind = "perfect" if perfect else "random"
    progress = Progress("generating mazes", wanted, "mazes")
    parts: list[tuple[np.ndarray, ...]] = []
    first = made = 0
    while made < wanted:
        count = min(wanted - made + 8, 256)
        questions = np.empty((count, side * side), dtype=np.uint8)
        answers, lengths = np.empty_like(questions), np.zeros(count, dtype=np.int64)
        single = np.zeros(count, dtype=bool)

        arrays = (questions, answers, lengths, single)
        over_rows(partial(_generate, config, first, arrays), count, 8)
        good = lengths > 0
        first += count
        if not good.any():
            raise UserError(
                f"none of {count * TRIES:,} {kind} {side}x{side} mazes had a shortest path of {config.min_path} cells "
                "or more: lower data.min_path or raise data.maze_size"
            )
        parts.append((questions[good], answers[good], lengths[good], single[good]))
        made += int(good.sum())
        if made >= wanted:
            questions, answers, lengths, single = (np.concatenate(arrays) for arrays in zip(*parts))
            shown = np.where(questions == WALL, WALL, OPEN) if perfect else questions
            numbers = number_rows(canonical_mazes(side, shown.astype(np.uint8)))
            keep = np.sort(np.unique(numbers, return_index=True)[1])
            made = len(keep)
            if made < wanted and first > MOST_MADE * wanted:
                raise UserError(
                    f"only {made} of {len(questions)} {kind} {side}x{side} mazes had different "
                    f"{'walls' if perfect else 'cells'}, not {wanted}: lower data.pool or raise data.maze_size"
                )
        progress.update(min(made, wanted))
    progress.close(wanted)
    removed, keep = len(questions) - len(keep), keep[:wanted]
    report = {"class_of": "walls" if perfect else "maze", "equivalent_removed": removed}
    report["one_shortest_path"] = int(single[keep].sum())
    return make_pool(questions[keep], answers[keep], lengths[keep], report)


def _generate(config: DataConfig, first: int, arrays: tuple[np.ndarray, ...], start: int, stop: int) -> None:
    from trm.tasks.maze.kernels import generate_batch

    root = np.uint64(rng.root_key(config.seed, "generate"))
    part = [array[start:stop] for array in arrays]
    walls = WALLS.index(config.walls)
    generate_batch(
        root, first + start, config.maze_size, config.min_path, config.unique_path, walls, TRIES, *part
    )


def read_pool(config: DataConfig, files: list[tuple[str, Path]], divided: bool = False) -> Pool:
    """The validated mazes of CSV files; of equivalent ones the first is kept.

    Args:
        files: name and path of each; if `divided`, the training and the test puzzles of a published data set.

    Raises:
        UserError: a maze is malformed; the message has file and line.
    """
    cells = config.maze_size**2
    read = [read_csv(path, cells, partial(_check, name, config.maze_size), name)[:2] for name, path in files]
    part = parts_of([len(arrays[0]) for arrays in read], divided)
    questions, answers = (np.concatenate(arrays) for arrays in zip(*read))
    numbers = number_rows(canonical_mazes(config.maze_size, questions))
    keep = without_equivalents(numbers, part)
    classes = np.unique(numbers[keep], return_inverse=True)[1].astype(np.int32)
    questions, answers = questions[keep], answers[keep]
    _, lengths, single = examine(config.maze_size, questions, answers)
    report = {"class_of": "maze", "one_shortest_path": int(single.sum()), "read": len(part)}
    report["equivalent_removed"] = int((~keep).sum())
    order = split_order(classes, config.seed)
    return make_pool(questions, answers, lengths, report, classes, order, part[keep])


def _check(
    name: str, side: int, question: np.ndarray, answer: np.ndarray, lines: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of a block's characters (questions, answers, numbers of their lines)."""
    table = np.zeros(256, dtype=np.uint8)
    for token, character in enumerate(CHARACTERS, start=1):
        table[ord(character)] = token
    questions, answers = table[question], table[answer]
    for column, tokens, text in (("question", questions, question), ("answer", answers, answer)):
        refuse_characters(tokens == 0, text, column, f"'{CHARACTERS}'", name, lines)
    for token, what in ((START, "S (start)"), (GOAL, "G (goal)")):
        count = (questions == token).sum(axis=1)
        refuse(count != 1, name, lines, lambda at: f"the maze has {count[at]} {what}, not one")  # noqa: B023 (called at once)
    refuse(
        (questions == PATH).any(axis=1), name, lines, lambda at: "the question shows a path (o): remove it"
    )
    same = (answers == questions) | ((answers == PATH) & (questions == OPEN))
    refuse(
        ~same.all(axis=1), name, lines, lambda at: "question and answer show different mazes: correct them"
    )
    faults = examine(side, questions, answers)[0]
    words = {
        1: "there is no path from S to G",
        2: "the answer is not a shortest path",
        3: "the answer's path is broken",
    }
    refuse(faults > 0, name, lines, lambda at: f"{words[int(faults[at])]}: correct or remove it")
    return questions, answers


def examine(
    side: int, questions: np.ndarray, answers: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Faults (see `kernels.check_batch`), cells of the shortest path (0: none), and whether it is the only one."""
    from trm.tasks.maze.kernels import check_batch

    faults, lengths = np.zeros(len(questions), dtype=np.int64), np.zeros(len(questions), dtype=np.int64)
    single = np.zeros(len(questions), dtype=bool)
    check_batch(side, questions, answers, faults, lengths, single)
    return faults, lengths, single


def canonical_mazes(side: int, questions: np.ndarray) -> np.ndarray:
    """The lexicographically smallest of the 8 symmetric forms of each maze, uint8."""
    best = questions.copy()
    rows = np.arange(len(questions))
    for cells in dihedral_cells(side)[1:]:
        other = questions[:, cells]
        differs = best != other
        at = differs.argmax(axis=1)
        less = other[rows, at] < best[rows, at]
        best[less] = other[less]
    return best


def fill_dead_ends(questions: np.ndarray) -> np.ndarray:
    """Dead-end filling, without searching for the shortest path: cells with one open neighbour are filled until none is
    left; the cells still connected to the start are the path.

    Args:
        questions: tokens, uint8 [mazes, side * side].

    Returns:
        Answers of the same shape, correct if only one path is left.
    """
    side = round(questions.shape[1] ** 0.5)
    grids = questions.reshape(-1, side, side)
    ends = (grids == START) | (grids == GOAL)
    left = grids != WALL
    while True:
        kept = left & (ends | (_open_neighbours(left) > 1))
        if (kept == left).all():
            break
        left = kept
    reached = grids == START
    while True:
        grown = left & (reached | (_open_neighbours(reached) > 0))
        if (grown == reached).all():
            break
        reached = grown
    return np.where(reached & ~ends, PATH, grids).reshape(questions.shape).astype(np.uint8)


def _open_neighbours(cells: np.ndarray) -> np.ndarray:
    """Number of the four neighbours of each cell that are true, int64 [mazes, side, side]."""
    wide = np.pad(cells, ((0, 0), (1, 1), (1, 1))).astype(np.int64)
    return wide[:, :-2, 1:-1] + wide[:, 2:, 1:-1] + wide[:, 1:-1, :-2] + wide[:, 1:-1, 2:]
