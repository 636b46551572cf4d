"""Cuts a pool into train, validation and test with no class in two of them.

Train is taken from the front of the seeded order (so a smaller training set is part of a larger one), validation from
the back, test just before it; with `test_puzzles: null` everything between is the test set. A class that a cut would
divide stays on one side; its puzzles beyond the cut are used by neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trm.data.pool import TEST, Pool
from trm.errors import UserError
from trm.study.schema import DataConfig


@dataclass(frozen=True)
class Splits:
    """Puzzle numbers of each split (int32), and how many were left out to keep classes apart."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    left_out: int


def split(pool: Pool, config: DataConfig, name: str) -> Splits:
    """Puzzles of each split.

    Raises:
        UserError: when the pool `name` is too small.
    """
    tested = pool.part[pool.order] == TEST
    if tested.any():
        return _own_division(pool, config, name, pool.order[tested])
    order, classes = pool.order, pool.classes[pool.order]
    wanted_train = config.train_puzzles
    back = _start_of_class(
        classes, _from_back(len(order), config.validation_puzzles, name, "validation_puzzles")
    )
    validation = order[len(order) - config.validation_puzzles :] if config.validation_puzzles else order[:0]
    left_out = len(order) - len(validation) - back
    if config.test_puzzles is not None:
        start = _from_back(back, config.test_puzzles, name, "test_puzzles")
        test, front = order[start:back], _start_of_class(classes, start)
        left_out += start - front
        train = order[:front] if wanted_train is None else order[:wanted_train]
        if len(train) > front or not front:
            raise UserError(_too_few(name, "train_puzzles", wanted_train or 1, front))
        return Splits(train, validation, test, left_out)
    if wanted_train is None:
        raise UserError("data.train_puzzles and data.test_puzzles are both null: give one of the numbers")
    if wanted_train >= back:
        raise UserError(
            _too_few(name, "train_puzzles (and at least one for testing)", wanted_train + 1, back)
        )
    rest = _end_of_class(classes, wanted_train)
    if rest >= back:
        raise UserError(
            _too_few(name, "train_puzzles (and at least one for testing)", wanted_train + 1, back)
        )
    return Splits(order[:wanted_train], validation, order[rest:back], left_out + rest - wanted_train)


def _own_division(pool: Pool, config: DataConfig, name: str, test: np.ndarray) -> Splits:
    """The source's own test puzzles; train and validation from the others, less those of a tested class."""
    free = pool.order[pool.part[pool.order] != TEST]
    shared = np.isin(pool.classes[free], np.unique(pool.classes[test]))
    free = free[~shared]
    classes = pool.classes[free]
    back = _start_of_class(
        classes, _from_back(len(free), config.validation_puzzles, name, "validation_puzzles")
    )
    validation = free[len(free) - config.validation_puzzles :] if config.validation_puzzles else free[:0]
    train = free[:back] if config.train_puzzles is None else free[: config.train_puzzles]
    if len(train) > back or not back:
        raise UserError(_too_few(name, "train_puzzles", config.train_puzzles or 1, back))
    if config.test_puzzles is not None:
        if config.test_puzzles > len(test):
            raise UserError(_too_few(name, "test_puzzles", config.test_puzzles, len(test)))
        test = test[: config.test_puzzles]
    return Splits(train, validation, test, int(shared.sum()) + len(free) - len(validation) - back)


def _from_back(stop: int, count: int, name: str, field: str) -> int:
    if count > stop:
        raise UserError(_too_few(name, field, count, stop))
    return stop - count


def _too_few(name: str, field: str, wanted: int, found: int) -> str:
    return (
        f"{name} has {found} puzzles left for data.{field}, {wanted} are asked for: "
        "lower the numbers of puzzles, or give a larger source (data.pool)"
    )


def _start_of_class(classes: np.ndarray, at: int) -> int:
    """The first position of the class that stands at `at` (classmates stand together)."""
    if at >= len(classes):
        return at
    others = np.flatnonzero(classes[:at] != classes[at])
    return int(others[-1]) + 1 if len(others) else 0


def _end_of_class(classes: np.ndarray, at: int) -> int:
    """The first position from `at` on that is of another class than the one before `at`."""
    if at == 0 or at >= len(classes):
        return at
    others = np.flatnonzero(classes[at:] != classes[at - 1])
    return at + int(others[0]) if len(others) else len(classes)
