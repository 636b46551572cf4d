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
from trm.tasks.arc.spec import check_families

SMALLEST = 4
"""Smallest side of the canvas."""
MOST_PAIRS = 50
"""The smallest grids do not allow many more pairs."""
Draw = Callable[[Draws, np.ndarray, int], np.ndarray]
"""(draws, the task's colours, side) -> input grid."""
Rule = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(grid, the task's colours) -> grid."""


def _one(draws: Draws, low: int, high: int) -> int:
    """A number in low..high."""
    return low + int(draws.below(high - low + 1, 1)[0])


def _grid(draws: Draws, colours: np.ndarray, height: int, width: int) -> np.ndarray:
    """Cells of background and three colours, uint8 [height, width]."""
    shown = np.concatenate([[0, 0], colours[:3]])
    drawn = shown[draws.below(len(shown), height * width)]
    return np.asarray(drawn, np.uint8).reshape(height, width)


def _any(draws: Draws, colours: np.ndarray, side: int) -> np.ndarray:
    """A grid of colours drawn for each pair, of two columns or more."""
    return _grid(draws, draws.colours(), _one(draws, 1, side - 1), _one(draws, 2, side - 1))


def _coloured(draws: Draws, colours: np.ndarray, side: int) -> np.ndarray:
    """A grid with the task's first colour, without its second."""
    return _grid(draws, colours[[0, 2, 3]], _one(draws, 1, side - 1), _one(draws, 1, side - 1))


def _edges(draws: Draws, colours: np.ndarray, side: int) -> np.ndarray:
    """Some rows with a coloured cell at the left edge, others with one elsewhere or none."""
    height, width = _one(draws, 2, side - 1), _one(draws, 2, side - 1)
    question = np.zeros((height, width), dtype=np.uint8)
    shades = draws.colours()
    for row in range(height):
        kind, colour = _one(draws, 0, 3), shades[_one(draws, 0, 2)]
        if kind < 3:
            question[row, 0 if kind < 2 else _one(draws, 1, width - 1)] = colour
    return question


def _low(draws: Draws, colours: np.ndarray, side: int) -> np.ndarray:
    """A grid of at most half the side's rows."""
    return _grid(draws, draws.colours(), _one(draws, 1, side // 2), _one(draws, 1, side - 1))


def _framed(draws: Draws, colours: np.ndarray, side: int) -> np.ndarray:
    """A grid of one colour with another in the middle; odd sides."""
    odd = (side - 2) // 2
    height, width = 1 + 2 * _one(draws, 0, odd), 1 + 2 * _one(draws, 1, odd)
    around, centre = draws.colours()[:2] * np.array([_one(draws, 0, 4) > 0, 1])
    question = np.full((height, width), around, dtype=np.uint8)
    question[height // 2, width // 2] = centre
    return question


FAMILIES: dict[str, tuple[Draw, Rule]] = {
    "recolour": (_coloured, lambda grid, colours: np.where(grid == colours[0], colours[1], grid)),
    "mirror": (_any, lambda grid, colours: grid[:, ::-1]),
    "fill": (_edges, lambda grid, colours: np.where(grid[:, :1] > 0, grid[:, :1], grid)),
    "stack": (_low, lambda grid, colours: np.concatenate([grid, grid])),
    "middle": (_framed, lambda grid, colours: grid[len(grid) // 2, grid.shape[1] // 2].reshape(1, 1)),
}
"""Each family's inputs and rule: the task's first colour becomes the second; mirror left-right; a coloured cell at the
left edge fills its row; stack the grid on itself; keep only the middle cell."""


def tasks(
    count: int, side: int, seed: int, families: tuple[str, ...] = tuple(FAMILIES), pairs: int = 10
) -> dict[str, Any]:
    """Tasks 0..count-1 by name, each `{"train": [{"input", "output"}], "test": [...]}`.

    Args:
        count: number of tasks.
        side: of the canvas, 4 to 30; inputs are at least a row and a column smaller, so that copies can be shifted.
        seed: any integer.
        families: names of families, used alternately; `a+b` applies b's rule to the output of a's.
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
    check_families(families)
    # the seed is in the name, so that files of several seeds can be used together (0: as in earlier versions)
    own = f"{seed}-" if seed else ""
    made = (task(seed, number, side, families, pairs) for number in range(count))
    return {name.replace("-", f"-{own}"): document for name, document in made}


def task(
    seed: int, number: int, side: int, families: tuple[str, ...], pairs: int
) -> tuple[str, dict[str, Any]]:
    """Name and document of one task; see `tasks`."""
    family = families[number % len(families)]
    draws = Draws(rng.key(rng.root_key(seed, "generate"), number))
    colours = draws.colours(9)
    first, *then = (FAMILIES[name] for name in family.split("+"))

    def draw() -> tuple[np.ndarray, np.ndarray]:
        while True:
            question = first[0](draws, colours, side)
            answer = first[1](question, colours)
            for _, rule in then:
                answer = rule(answer, colours)
            if len(answer) <= side:
                return question, answer

    return f"{family}-{number}", document(draw, pairs)
