"""Hints: extra clues copied from the answer, a pure function of one key per row."""

import numpy as np

from trm.data import rng

BLANK = 1
"""Token of a blank Sudoku cell."""


def keys_of_step(seed: int, step: int, batch: int, first: int, count: int) -> np.ndarray:
    """Keys of rows first..first+count-1 in the global batch of `step` (from 0), uint64 [count]."""
    return rng.key(rng.root_key(seed, "hint"), step * batch + first + np.arange(count))


def counts(keys: np.ndarray, least: int, most: int) -> np.ndarray:
    """Number of hints of each row, in [least, most]: int64 [b]."""
    return least + rng.bounded(rng.draw(keys, 0), most - least + 1)


def order(keys: np.ndarray, blank: np.ndarray) -> np.ndarray:
    """The order in which blank cells are filled in.

    Args:
        keys: uint64 [b].
        blank: bool [b, cells].

    Returns:
        int16 [b, cells]: 0 for the first cell, 1 for the second, ...; the number of cells if not blank.
    """
    cells = blank.shape[1]
    draws = rng.draw(keys[:, None], 1 + np.arange(cells)) >> np.uint64(1)
    draws[~blank] = np.uint64((1 << 64) - 1)
    ranks = np.empty(blank.shape, dtype=np.int16)
    places = np.argsort(draws, axis=1, kind="stable")
    np.put_along_axis(ranks, places, np.arange(cells, dtype=np.int16)[None], axis=1)
    ranks[~blank] = cells
    return ranks


def give(questions: np.ndarray, answers: np.ndarray, keys: np.ndarray, hints: tuple[int, int]) -> np.ndarray:
    """Questions with a random number of hints in the range `hints`, uint8 [b, cells]."""
    shown = order(keys, questions == BLANK) < counts(keys, *hints)[:, None]
    return np.where(shown, answers, questions)
