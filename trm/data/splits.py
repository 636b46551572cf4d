"""Split a pool into train, validation and test, so that no class is in two of them.

The seeded order is cut into validation, test, train: a larger training set or generated pool adds puzzles at the end
and moves no others. With `test_puzzles: null`, train comes before test, which takes the rest. A class that a cut would
divide goes to the earlier side; its puzzles beyond the cut are not used.
"""

from dataclasses import dataclass

import numpy as np

from trm.data.pool import TEST, Pool
from trm.errors import UserError
from trm.study.schema import DataConfig


@dataclass(frozen=True)
class Splits:
    """Puzzle numbers of each split (int32), and how many were left out to keep classes together."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    left_out: int


def split(pool: Pool, config: DataConfig, name: str) -> Splits:
    """Split a pool. Raises UserError if the pool, called `name` in messages, is too small."""
    own_test = pool.part[pool.order] == TEST
    if own_test.any():
        return _own_division(pool, config, name, pool.order[own_test])
    cutter = _Cutter(pool.order, pool.classes, name)
    validation = cutter.take(config.validation_puzzles, "validation_puzzles")
    if config.test_puzzles is None:
        if config.train_puzzles is None:
            raise UserError("data.train_puzzles and data.test_puzzles are both null: give one of them")
        train = cutter.take(config.train_puzzles, "train_puzzles")
        test = cutter.take(None, "test_puzzles")
    else:
        test = cutter.take(config.test_puzzles, "test_puzzles")
        train = cutter.take(config.train_puzzles, "train_puzzles")
    return Splits(train, validation, test, cutter.left_out)


def _own_division(pool: Pool, config: DataConfig, name: str, test: np.ndarray) -> Splits:
    """Keep the source's test puzzles; take train and validation from the others, without classes of the test."""
    free = pool.order[pool.part[pool.order] != TEST]
    shared = np.isin(pool.classes[free], np.unique(pool.classes[test]))
    cutter = _Cutter(free[~shared], pool.classes, name)
    validation = cutter.take(config.validation_puzzles, "validation_puzzles")
    train = cutter.take(config.train_puzzles, "train_puzzles")
    if config.test_puzzles is not None:
        if config.test_puzzles > len(test):
            raise UserError(_too_few(name, "test_puzzles", config.test_puzzles, len(test)))
        test = test[: config.test_puzzles]
    return Splits(train, validation, test, cutter.left_out + int(shared.sum()))


class _Cutter:
    """Takes puzzles from the front of an order in which those of a class are adjacent."""

    def __init__(self, order: np.ndarray, classes: np.ndarray, name: str):
        self._order, self._classes, self._name = order, classes[order], name
        self._at = self.left_out = 0

    def take(self, count: int | None, field: str) -> np.ndarray:
        """The next `count` puzzles (None: all, at least one)."""
        left = len(self._order) - self._at
        if (count if count is not None else 1) > left:
            raise UserError(_too_few(self._name, field, 1 if count is None else count, left))
        stop = self._at + (left if count is None else count)
        taken = self._order[self._at : stop]
        self._at = stop
        if len(taken) and stop < len(self._order):
            others = np.flatnonzero(self._classes[stop:] != self._classes[stop - 1])
            cut = int(others[0]) if len(others) else len(self._order) - stop
            self._at += cut
            self.left_out += cut
        return taken


def _too_few(name: str, field: str, wanted: int, left: int) -> str:
    return (
        f"{name} has {left} puzzles left for data.{field}, at least {wanted} are needed: "
        "lower the numbers of puzzles, or give a larger source or data.pool"
    )
