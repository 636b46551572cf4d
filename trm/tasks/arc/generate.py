"""ARC tasks generated offline in the layout of the official JSON files.

The paper trains on the demonstrations of the test tasks, all training tasks, and ConceptARC, which has other tasks of
the same concepts; these are such tasks. Task i is a pure function of (seed, i). Families alternate, so as many
consecutive tasks as there are families have one of each. Colours and grid sizes are random.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from trm.data import rng
from trm.errors import UserError
from trm.tasks.arc.spec import check_families

SMALLEST = 4
"""Smallest side of the canvas."""
MOST_PAIRS = 50
"""The smallest grids have few more distinct pairs."""


class Draws:
    """A stream of random numbers for one task."""

    def __init__(self, key: np.ndarray):
        self._key, self._at = key, 0

    def below(self, bound: int, count: int) -> np.ndarray:
        """`count` numbers in 0..bound-1, int64."""
        positions = np.arange(self._at, self._at + count, dtype=np.int64)
        self._at += count
        return rng.bounded(rng.draw(self._key, positions), bound)

    def colours(self, count: int = 3) -> np.ndarray:
        """`count` distinct colours 1..9, int64."""
        return np.argsort(self.below(1 << 32, 9), kind="stable")[:count] + 1


Draw = Callable[[Draws, np.ndarray, int], np.ndarray]
"""(draws, the task's colours, side) -> input grid."""
Rule = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(grid, the task's colours) -> grid."""


def document(draw: Callable[[], tuple[np.ndarray, np.ndarray]], count: int) -> dict[str, Any]:
    """A task of `count` drawn pairs, the last one as test."""
    pairs: list[dict[str, Any]] = []
    while len(pairs) < count:
        question, answer = draw()
        pair = {"input": question.tolist(), "output": answer.tolist()}
        if pair["input"] != pair["output"] and pair not in pairs:  # a pair must show the rule, and be new
            pairs.append(pair)
    return {"train": pairs[:-1], "test": pairs[-1:]}


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
