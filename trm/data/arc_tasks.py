"""Small ARC tasks made offline, in the layout of the official JSON files: what the laptop's experiment trains on.

Task i is a pure function of (seed, i) and one of five kinds in turn, so any five that follow one another hold one of
each. All pairs of a task share one size of grid; which colours play a part is drawn for each task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trm.data import rng

KINDS = ("recolour", "flip", "transpose", "fill", "move")
DEMONSTRATIONS = 4
"""Pairs that a task shows; one more is its test."""
SMALLEST = 3
"""Least rows and columns of a grid."""
COLOURED = 0.6
"""Share of cells that are not background."""


class _Draws:
    """Numbers of one task, one after the other."""

    def __init__(self, key: np.ndarray):
        self._key, self._at = key, 0

    def below(self, bound: int, count: int) -> np.ndarray:
        """`count` numbers 0..bound-1, int64."""
        positions = np.arange(self._at, self._at + count, dtype=np.int64)
        self._at += count
        return rng.bounded(rng.draw(self._key, positions), bound)


def _cells(draws: _Draws, height: int, width: int, palette: np.ndarray) -> np.ndarray:
    """A grid of background and palette colours, uint8 [height, width]."""
    colours = palette[draws.below(len(palette), height * width)]
    shown = draws.below(1000, height * width) < int(1000 * COLOURED)
    return np.where(shown, colours, 0).astype(np.uint8).reshape(height, width)


def _recolour(grid: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """The task's first colour becomes its second one."""
    return np.where(grid == palette[0], palette[1], grid)


def _fill(grid: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """The background of each row whose first cell is coloured takes that colour."""
    return np.where((grid == 0) & (grid[:, :1] > 0), grid[:, :1], grid)


def _move(grid: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """Everything moves one column to the right; what leaves the grid is gone."""
    return np.concatenate([np.zeros_like(grid[:, :1]), grid[:, :-1]], axis=1)


_RULES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "recolour": _recolour,
    "flip": lambda grid, palette: grid[:, ::-1],
    "transpose": lambda grid, palette: grid.T,
    "fill": _fill,
    "move": _move,
}


def task(seed: int, number: int, side: int) -> tuple[str, dict[str, Any]]:
    """Name and document of one task, `{"train": [{"input", "output"}], "test": [...]}`.

    Args:
        seed: any integer.
        number: 0, 1, ...; its remainder by five says the kind.
        side: most rows and columns of a grid, at least 4.
    """
    kind = KINDS[number % len(KINDS)]
    key = rng.key(rng.root_key(seed, "generate"), number)
    draws = _Draws(key)
    largest = min(side - 1, 6)  # one line is left for the token that ends a grid
    height, width = (int(draws.below(largest - SMALLEST + 1, 1)[0]) + SMALLEST for _ in range(2))
    palette = rng.permutations(rng.key(int(key[0]), 1), 0, 9)[0, :3] + 1
    pairs: list[dict[str, Any]] = []
    while len(pairs) < DEMONSTRATIONS + 1:
        question = _cells(draws, height, width, palette)
        answer = _RULES[kind](question, palette)
        pair = {"input": question.tolist(), "output": answer.tolist()}
        if pair["input"] != pair["output"] and pair not in pairs:  # a pair must show the rule, and be new
            pairs.append(pair)
    return f"{kind}-{number}", {"train": pairs[:-1], "test": pairs[-1:]}
