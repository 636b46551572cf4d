"""Read ARC-AGI tasks in the public JSON layout and encode them as square canvases of tokens (30x30 or `data.arc_side`).

Files are challenges (`{task: {"train": [{"input", "output"}], "test": [{"input"}]}}`), solutions (`{task: [grid]}`) or
single tasks (`{"train": [...], "test": [{"input", "output"}]}`). Tokens: colour + 2; 1 ends a grid (in the row below
and the column to the right); 0 is padding. Names of files and folders say which tasks are tests (`spec.role_of`);
if none does, the tasks are split at random.
"""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trm.data.pool import FREE, TEST, TRAIN, Pool, split_order
from trm.errors import UserError
from trm.study.schema import DataConfig
from trm.tasks.arc.spec import FAMILIES, role_of
from trm.tasks.grids import number_rows

SIDE = 30
"""Rows and columns of a canvas, and of the largest grid that the layout allows."""
PAD, EOS, COLOUR = 0, 1, 2
"""Padding, end of grid, and the token of colour 0."""


@dataclass
class Task:
    """Pairs of grids (uint8 [rows, columns], colours 0-9); answers in `test` are None until solutions are read."""

    name: str
    where: str
    evaluation: bool
    train: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    test: list[tuple[np.ndarray, np.ndarray | None]] = field(default_factory=list)

    @property
    def side(self) -> int:
        """Rows or columns of the largest grid."""
        grids = [grid for pair in (*self.train, *self.test) for grid in pair if grid is not None]
        return int(max(max(grid.shape) for grid in grids))


def json_pool(config: DataConfig, files: list[tuple[str, Path]]) -> Pool:
    """All tasks of the files as one pool; rotations, reflections and recolourings of a task are one class.

    Raises:
        UserError: malformed input, with file, line and task, or a task without a solution.
    """
    pool = task_pool(config, read_tasks(files))
    pool.report["test_files"] = [name for name, _ in files if role_of(name) == "evaluation"]
    return pool


def generated_pool(config: DataConfig) -> Pool:
    """`config.pool` generated tasks of alternating families, no two equivalent. Raises UserError as `task_pool`."""
    from trm.tasks.arc.generate import task

    tasks: dict[tuple[int, ...], Task] = {}
    number = 0
    while len(tasks) < config.pool:
        families = config.arc_families or FAMILIES
        name, document = task(config.seed, number, config.arc_side, families, config.arc_pairs)
        made = _task(name, f"task {name}", document, False)
        tasks.setdefault(tuple(class_key(made)), made)
        number += 1
    pool = task_pool(config, list(tasks.values()))
    pool.order = np.arange(pool.puzzles, dtype=np.int32)  # consecutive tasks are of different families
    return pool


def task_pool(config: DataConfig, tasks: list[Task]) -> Pool:
    """Tasks as a pool of canvases of `config.arc_side`; tasks with larger grids are dropped and counted.

    Raises:
        UserError: a task has no solution, or no task fits into the canvas.
    """
    side = config.arc_side
    read, tasks = len(tasks), [task for task in tasks if task.side <= side]
    if not tasks:
        raise UserError(f"all {read} tasks have grids larger than data.arc_side={side}: raise it")
    questions, answers, part, sizes = [], [], [], []
    for task in tasks:
        for pairs, kind in ((task.train, TRAIN), (task.test, TEST)):
            for question, answer in pairs:
                if answer is None:
                    raise UserError(
                        f"{task.where}: task {task.name} has no solution: add the file of solutions"
                    )
                questions.append(encode(question, side))
                answers.append(encode(answer, side))
                part.append(kind)
        sizes.append(len(task.train) + len(task.test))
    classes = number_rows(np.array([class_key(task) for task in tasks], dtype=np.uint64))
    divided = any(task.evaluation for task in tasks)
    parts = [TEST if task.evaluation else TRAIN if divided else FREE for task in tasks]
    return Pool(
        questions=np.stack(questions),
        answers=np.stack(answers),
        ratings=np.zeros(len(tasks), dtype=np.int32),
        classes=classes,
        order=split_order(classes, config.seed),
        part=np.array(parts, dtype=np.uint8),
        puzzle_indices=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        example_part=np.array(part, dtype=np.uint8),
        names=[task.name for task in tasks],
        report={"classes": int(classes.max()) + 1, "class_of": "task", "examples": len(part)}
        | ({"training_tasks": parts.count(TRAIN), "test_tasks": parts.count(TEST)} if divided else {})
        | ({"too_large": read - len(tasks)} if read > len(tasks) else {}),
    )


def read_tasks(files: list[tuple[str, Path]]) -> list[Task]:
    """Tasks in the order of the files, with solutions from any of the files. Raises UserError as `json_pool`."""
    tasks: dict[str, Task] = {}
    solutions: list[tuple[str, str, dict[str, Any]]] = []
    for name, path in files:
        text, document = _read(name, path)
        if isinstance(document.get("train"), list):  # a file with a single task
            document = {path.stem: document}
        if document and all(isinstance(value, list) for value in document.values()):
            solutions.append((name, text, document))
            continue
        for key, value in document.items():
            where = f"{name} line {_line(text, key)}"
            if key in tasks:
                raise UserError(f"{where}: task {key} is also in {tasks[key].where}: remove one")
            tasks[key] = _task(key, where, value, role_of(name) == "evaluation")
    for name, text, document in solutions:
        for key, grids in document.items():
            where = f"{name} line {_line(text, key)}: task {key}"
            if key not in tasks:
                raise UserError(
                    f"{where} is in no file of challenges: add that file, or remove the solutions"
                )
            test = tasks[key].test
            if len(grids) != len(test):
                raise UserError(
                    f"{where} has {len(grids)} solutions for {len(test)} test inputs: correct one of them"
                )
            tasks[key].test = [(pair[0], _grid(grid, f"{where} solution {i + 1}")) for i, (pair, grid) in
                               enumerate(zip(test, grids))]  # fmt: skip
    if not tasks:
        raise UserError(
            f"{', '.join(name for name, _ in files)}: no tasks: give at least one file of challenges"
        )
    return list(tasks.values())


def _read(name: str, path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        document = json.loads(text)
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"{name} line {error.lineno} is not JSON ({error.msg}): correct it, or fetch it again"
        ) from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{name} is not JSON text ({error}): fetch it again") from None
    if not isinstance(document, dict):
        raise UserError(f"{name} line 1: not an object of tasks: give an ARC file of challenges or solutions")
    return text, document


def _line(text: str, key: str) -> int:
    return text[: max(0, text.find(json.dumps(key)))].count("\n") + 1


def _task(name: str, where: str, value: Any, evaluation: bool) -> Task:
    task = Task(name, where, evaluation)
    for kind in ("train", "test"):
        pairs = value.get(kind) if isinstance(value, dict) else None
        if not isinstance(pairs, list) or not pairs:
            raise UserError(f"{where}: task {name} has no list `{kind}` of pairs: correct or remove it")
        for number, pair in enumerate(pairs, start=1):
            place = f"{where}: task {name} {kind} {number}"
            if (
                not isinstance(pair, dict)
                or "input" not in pair
                or (kind == "train" and "output" not in pair)
            ):
                raise UserError(f"{place} is not a pair of `input` and `output`: correct or remove it")
            answer = _grid(pair["output"], f"{place} output") if "output" in pair else None
            getattr(task, kind).append((_grid(pair["input"], f"{place} input"), answer))
    return task


def _grid(rows: Any, place: str) -> np.ndarray:
    wrong = not isinstance(rows, list) or not 1 <= len(rows) <= SIDE
    wrong = wrong or not all(isinstance(row, list) and 1 <= len(row) <= SIDE for row in rows)
    if wrong or len({len(row) for row in rows}) != 1:
        raise UserError(
            f"{place} is not a grid of 1-{SIDE} rows of equal length 1-{SIDE}: correct or remove it"
        )
    if not all(type(cell) is int and 0 <= cell <= 9 for row in rows for cell in row):
        raise UserError(f"{place} has a cell that is not a colour 0-9: correct or remove it")
    return np.array(rows, dtype=np.uint8)


def encode(grid: np.ndarray, side: int = SIDE) -> np.ndarray:
    """Tokens of a canvas with a grid in its top left corner, uint8 [side * side]."""
    height, width = grid.shape
    canvas = np.full((side, side), PAD, dtype=np.uint8)
    canvas[:height, :width] = grid + COLOUR
    if height < side:
        canvas[height, :width] = EOS
    if width < side:
        canvas[:height, width] = EOS
    return canvas.reshape(-1)


def decode(tokens: np.ndarray) -> np.ndarray | None:
    """The grid in the top left corner: the largest rectangle of colours there, or None. Inverts `encode` and is defined
    for any prediction."""
    side = math.isqrt(len(tokens))
    canvas = tokens.reshape(side, side)
    inside = (canvas >= COLOUR) & (canvas < COLOUR + 10)
    widths = np.minimum.accumulate(np.cumprod(inside, axis=1).sum(axis=1))
    areas = widths * np.arange(1, side + 1)
    best = int(areas.argmax())
    return (canvas[: best + 1, : widths[best]] - COLOUR).astype(np.uint8) if areas[best] else None


def turn(grid: np.ndarray, number: int) -> np.ndarray:
    """One of the 8 symmetries of a rectangle, numbered as in `grids.dihedral_cells`."""
    if number < 4:
        return np.rot90(grid, number)
    return (np.fliplr, np.flipud, np.transpose, lambda array: np.rot90(array.T, 2))[number - 4](grid)


INVERSE_TURN = (0, 3, 2, 1, 4, 5, 6, 7)
"""turn(turn(grid, k), INVERSE_TURN[k]) equals the grid."""


def class_key(task: Task) -> list[int]:
    """A digest of two words, invariant under rotation, reflection, recolouring and the order of pairs."""
    from hashlib import blake2b

    def digest(number: int) -> bytes:
        forms = sorted(
            _recoloured(turn(question, number), turn(answer, number)) for question, answer in task.train
        )
        return blake2b(b"|".join(forms), digest_size=16).digest()

    best = min(digest(number) for number in range(8))
    return [int.from_bytes(best[:8], "little"), int.from_bytes(best[8:], "little")]


def _recoloured(question: np.ndarray, answer: np.ndarray) -> bytes:
    """Shapes and cells of a pair, colours renumbered by first appearance."""
    cells = np.concatenate([question.ravel(), answer.ravel()])
    colours, first = np.unique(cells, return_index=True)
    rank = np.empty(10, dtype=np.uint8)
    rank[colours[np.argsort(first)]] = np.arange(len(colours))
    return bytes([*question.shape, *answer.shape, *rank[cells].tolist()])
