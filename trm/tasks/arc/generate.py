"""Small ARC tasks generated offline in the layout of the official JSON files, for experiments on a laptop.

Task i is a pure function of (seed, i). Kinds alternate, so five consecutive tasks have one of each. Every grid fills
its canvas; each task draws the colours of its rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trm.data import rng

KINDS = ("recolour", "swap", "clear", "ground", "flip")
DEMONSTRATIONS = 6
"""Demonstration pairs of a task; one more pair is its test."""
COLOURED = 0.6
"""Share of cells that are not background."""


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


def _cells(draws: Draws, side: int, palette: np.ndarray) -> np.ndarray:
    """A grid of background and palette colours, uint8 [side, side]."""
    colours = palette[draws.below(len(palette), side * side)]
    shown = draws.below(1000, side * side) < int(1000 * COLOURED)
    return np.where(shown, colours, 0).astype(np.uint8).reshape(side, side)


def _recolour(grid: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """The task's first colour becomes the second."""
    return np.where(grid == palette[0], palette[1], grid)


def _swap(grid: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """Swap the task's first two colours."""
    return np.where(grid == palette[0], palette[1], np.where(grid == palette[1], palette[0], grid))


_RULES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "recolour": _recolour,
    "swap": _swap,
    "clear": lambda grid, palette: np.where(grid == palette[0], 0, grid),
    "ground": lambda grid, palette: np.where(grid == 0, palette[0], grid),
    "flip": lambda grid, palette: grid[:, ::-1],
}
"""Kind -> rule: the last one moves cells, the others map every cell by itself."""


def task(seed: int, number: int, side: int) -> tuple[str, dict[str, Any]]:
    """Name and document of one task, `{"train": [{"input", "output"}], "test": [...]}`.

    Args:
        seed: any integer.
        number: 0, 1, ...; number mod 5 is the kind.
        side: rows and columns of every grid.
    """
    kind = KINDS[number % len(KINDS)]
    key = rng.key(rng.root_key(seed, "generate"), number)
    draws = Draws(key)
    palette = rng.permutations(rng.key(int(key[0]), 1), 0, 9)[0, :3] + 1

    def draw() -> tuple[np.ndarray, np.ndarray]:
        question = _cells(draws, side, palette)
        return question, _RULES[kind](question, palette)

    return f"{kind}-{number}", document(draw, DEMONSTRATIONS + 1)


def document(draw: Callable[[], tuple[np.ndarray, np.ndarray]], count: int) -> dict[str, Any]:
    """A task of `count` drawn pairs, the last one as test."""
    pairs: list[dict[str, Any]] = []
    while len(pairs) < count:
        question, answer = draw()
        pair = {"input": question.tolist(), "output": answer.tolist()}
        if pair["input"] != pair["output"] and pair not in pairs:  # a pair must show the rule, and be new
            pairs.append(pair)
    return {"train": pairs[:-1], "test": pairs[-1:]}
