"""Families of ARC tasks with grids of different sizes, as additional training data.

The paper trains on the demonstrations of the test tasks, all training tasks, and ConceptARC, which has other tasks of
the same concepts. Task i is a pure function of (seed, i); families alternate; colours and grid sizes are random. The
layout is that of the official JSON files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trm.data import rng
from trm.errors import UserError
from trm.tasks.arc.generate import Draws, document

SMALLEST = 4
"""Smallest side of the canvas."""
MOST_PAIRS = 50
"""The smallest grids do not allow many more pairs."""
Rule = Callable[[Draws, np.ndarray, int], tuple[np.ndarray, np.ndarray]]
"""(draws, the task's colours, side) -> input and output grids."""


def _one(draws: Draws, low: int, high: int) -> int:
    """A number in low..high."""
    return low + int(draws.below(high - low + 1, 1)[0])


def _grid(draws: Draws, colours: np.ndarray, height: int, width: int) -> np.ndarray:
    """Cells of background and three colours, uint8 [height, width]."""
    shown = np.concatenate([[0, 0], colours[:3]])
    drawn = shown[draws.below(len(shown), height * width)]
    return np.asarray(drawn, np.uint8).reshape(height, width)


def _recolour(draws: Draws, colours: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """The task's first colour becomes the second, which is not in the inputs."""
    question = _grid(draws, colours[[0, 2, 3]], _one(draws, 1, side - 1), _one(draws, 1, side - 1))
    return question, np.where(question == colours[0], colours[1], question)


def _mirror(draws: Draws, colours: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Mirror the grid left-right."""
    question = _grid(draws, draws.colours(), _one(draws, 1, side - 1), _one(draws, 2, side - 1))
    return question, question[:, ::-1]


def _fill(draws: Draws, colours: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """A coloured cell at the left edge fills its row; other cells stay."""
    height, width = _one(draws, 2, side - 1), _one(draws, 2, side - 1)
    question = np.zeros((height, width), dtype=np.uint8)
    shades = draws.colours()
    answer = question.copy()
    for row in range(height):
        kind, colour = _one(draws, 0, 3), shades[_one(draws, 0, 2)]
        if kind < 2:  # from the edge
            question[row, 0] = colour
            answer[row] = colour
        elif kind == 2:  # a lone cell
            column = _one(draws, 1, width - 1)
            question[row, column] = answer[row, column] = colour
    return question, answer


def _stack(draws: Draws, colours: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Stack the grid on itself."""
    question = _grid(draws, draws.colours(), _one(draws, 1, side // 2), _one(draws, 1, side - 1))
    return question, np.concatenate([question, question])


def _middle(draws: Draws, colours: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Keep only the middle cell of a grid of one colour."""
    odd = (side - 2) // 2
    height, width = 1 + 2 * _one(draws, 0, odd), 1 + 2 * _one(draws, 1, odd)
    around, centre = draws.colours()[:2] * np.array([_one(draws, 0, 4) > 0, 1])
    question = np.full((height, width), around, dtype=np.uint8)
    question[height // 2, width // 2] = centre
    return question, question[height // 2 : height // 2 + 1, width // 2 : width // 2 + 1]


FAMILIES: dict[str, Rule] = {
    "recolour": _recolour,
    "mirror": _mirror,
    "fill": _fill,
    "stack": _stack,
    "middle": _middle,
}


def tasks(
    count: int, side: int, seed: int, families: tuple[str, ...] = tuple(FAMILIES), pairs: int = 10
) -> dict[str, Any]:
    """Tasks 0..count-1 by name, each `{"train": [{"input", "output"}], "test": [...]}`.

    Args:
        count: number of tasks.
        side: of the canvas, 4 to 30; inputs are at least a row and a column smaller, so that copies can be shifted.
        seed: any integer.
        families: names of families, used alternately.
        pairs: pairs per task, 2 to 50; the last one is its test.

    Raises:
        UserError: a number out of range, or an unknown family.
    """
    for name, value, low, high in (
        ("tasks", count, 1, 100_000),
        ("side", side, SMALLEST, 30),
        ("pairs", pairs, 2, MOST_PAIRS),
    ):
        if not low <= value <= high:
            raise UserError(f"generated ARC tasks: {name} is {value}; give {low} to {high}")
    for family in families:
        if family not in FAMILIES:
            raise UserError(f"unknown family of ARC tasks {family!r}: choose from {', '.join(FAMILIES)}")
    turn = [families[number % len(families)] for number in range(count)]
    # the seed is in the name, so that files of several seeds can be used together (0: as in earlier versions)
    own = f"{seed}-" if seed else ""
    return {
        f"{family}-{own}{number}": _task(family, number, side, seed, pairs)
        for number, family in enumerate(turn)
    }


def _task(family: str, number: int, side: int, seed: int, count: int) -> dict[str, Any]:
    draws = Draws(rng.key(rng.root_key(seed, "generate"), number))
    colours = draws.colours(9)
    return document(lambda: FAMILIES[family](draws, colours, side), count)
