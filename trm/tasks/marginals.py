"""Marginals of a set of puzzles: which digits and cells are given how often, and how many, for `trm data inspect`.

If every puzzle is under a random symmetry, each digit is as frequent as any other and each cell as any that a symmetry
maps to it. A collection in a canonical form or order is not so, and a model can learn the form instead of the rules.
"""

from dataclasses import dataclass

import numpy as np

SURE = 6.0
"""Standard deviations from the mean at which a marginal is not uniform: chance does this once in 5 million sets of 100
marginals."""

ENOUGH = 100
"""Puzzles in which a cell is given, for its digits to be compared."""


@dataclass(frozen=True)
class Symmetric:
    """Marginals that the symmetries of a task make uniform."""

    name: str
    """What a token is called: digit, colour."""
    tokens: tuple[int, ...]
    """Tokens that they permute."""
    given: tuple[int, ...]
    """Tokens whose places are compared."""
    cells: np.ndarray
    """int [S]: equal numbers for cells that they map to one another; empty: no cell is compared."""
    places: str = "clues"
    """What given cells are called."""


def describe(inputs: np.ndarray, puzzle: np.ndarray, kind: Symmetric) -> list[str]:
    """Lines of text: the shares of digits, rows and columns, and a warning if they are not uniform.

    Args:
        inputs: tokens, uint8 [rows, S].
        puzzle: int [rows], the puzzle of each row, increasing: rows of a puzzle are under one symmetry.
    """
    lines, odd = [], 0.0
    if len(kind.tokens) and len(inputs):
        counts = np.stack([(inputs == token).sum(axis=1) for token in kind.tokens], axis=1).astype(float)
        starts = np.flatnonzero(np.diff(puzzle, prepend=-1))
        counts = np.add.reduceat(counts, starts)
        lines.append(f"  {kind.name}s, %: {_shares(counts.sum(axis=0))}")
        odd = _deviation(counts)
    if len(kind.cells) and len(inputs):
        given = np.isin(inputs, kind.given)
        side = round(inputs.shape[1] ** 0.5)
        grid = given.sum(axis=0).reshape(side, side)
        lines.append(f"  {kind.places} by row, %: {_shares(grid.sum(axis=1))}")
        lines.append(f"  {kind.places} by column, %: {_shares(grid.sum(axis=0))}")
        clues = given.sum(axis=1)
        lines.append(f"  {kind.places}: mean {clues.mean():.1f}, {clues.min()} to {clues.max()}")
        for number in np.unique(kind.cells):
            odd = max(odd, _deviation(given[:, kind.cells == number]))
        for cell in np.flatnonzero(grid.ravel() >= ENOUGH) if len(kind.tokens) else ():
            # as in a first row of 1, 2, 3, ...
            odd = max(odd, _deviation(inputs[:, cell, None] == np.array(kind.tokens)))
    if odd > SURE:
        lines.append(
            f"  WARNING: these shares are not uniform ({odd:.0f} standard deviations): the puzzles are in a form "
            "that a model can learn instead of the rules; build the data set from its file again, which puts each "
            "puzzle under a random symmetry"
        )
    return lines


def _deviation(counts: np.ndarray) -> float:
    """The largest deviation of a column's sum, in standard deviations of a random order within each row."""
    counts = counts.astype(float)
    spread = np.sqrt(counts.var(axis=1).sum())
    total = counts.sum(axis=0)
    return float(np.abs(total - total.mean()).max() / spread) if spread else 0.0


def _shares(counts: np.ndarray) -> str:
    return " ".join(f"{100 * count / max(1, counts.sum()):.1f}" for count in counts)
