"""Sudoku with boxes of any size: geometry, symmetries, text form and rules.

A grid has n = box_rows * box_cols rows; values are 1..n, 0 for a blank; tokens are value + 1. Text has one character
per cell, row by row: 1-9, then A, B, ...; `.` or 0 for a blank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trm.data import rng
from trm.errors import UserError

SYMBOLS = "123456789ABCDEFGHIJKLMNOP"


@dataclass(frozen=True)
class Geometry:
    """Box shape of a grid, with the cells of its rows, columns and boxes."""

    box_rows: int
    box_cols: int

    @property
    def side(self) -> int:
        """n: number of rows, columns, boxes and values."""
        return self.box_rows * self.box_cols

    @property
    def cells(self) -> int:
        """n * n."""
        return self.side * self.side

    @property
    def transposable(self) -> bool:
        """Whether boxes are square, so that a transposed grid is valid."""
        return self.box_rows == self.box_cols

    @cached_property
    def units(self) -> np.ndarray:
        """Cells of each row, column and box: int32 [3n, n]."""
        n = self.side
        cell = np.arange(n * n).reshape(n, n)
        boxes = cell.reshape(self.box_cols, self.box_rows, self.box_rows, self.box_cols).transpose(0, 2, 1, 3)
        return np.concatenate([cell, cell.T, boxes.reshape(n, n)]).astype(np.int32)

    @cached_property
    def peers(self) -> np.ndarray:
        """Other cells that share a unit with each cell: int32 [n*n, peers]."""
        shares = np.zeros((self.cells, self.cells), dtype=bool)
        for unit in self.units:
            shares[np.ix_(unit, unit)] = True
        np.fill_diagonal(shares, False)
        return np.nonzero(shares)[1].reshape(self.cells, -1).astype(np.int32)

    @cached_property
    def cell_symmetries(self) -> np.ndarray:
        """All permutations of cells that map units to units, as source cells: uint16 [symmetries, n*n].

        Feasible for small grids only: 128 for 4x4, 3,456 for 6x6.
        """
        rows = _line_orders(self.side, self.box_rows)
        columns = _line_orders(self.side, self.box_cols)
        maps = (rows[:, None, :, None] * self.side + columns[None, :, None, :]).reshape(-1, self.cells)
        if self.transposable:
            turned = (columns[None, :, None, :] * self.side + rows[:, None, :, None]).reshape(-1, self.cells)
            maps = np.concatenate([maps, turned])
        return np.asarray(maps, np.uint16)


def _line_orders(side: int, group: int) -> np.ndarray:
    """All orders of n lines that keep blocks of adjacent lines together: int64 [orders, n]."""
    from itertools import permutations, product

    inner = list(permutations(range(group)))
    orders = [
        [block * group + offset for block, offsets in zip(blocks, choice) for offset in offsets]
        for blocks in permutations(range(side // group))
        for choice in product(inner, repeat=side // group)
    ]
    return np.array(orders, dtype=np.int64)


def sudoku_maps(geometry: Geometry, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A random symmetry of the rules for each key: digits, transposition (square boxes), bands, rows within bands,
    stacks, columns within stacks.

    Returns:
        token_map uint8 [keys, n + 2] and cell_map int16 [keys, n * n].
    """
    n, height, width = geometry.side, geometry.box_rows, geometry.box_cols
    count = len(keys)
    tokens = np.zeros((count, n + 2), dtype=np.uint8)
    tokens[:, 1] = 1
    tokens[:, 2:] = rng.permutations(keys, 0, n) + 2
    position = n - 1
    rows, after = _lines(keys, position + 1, n // height, height)
    columns, _ = _lines(keys, after, n // width, width)
    rows, columns = rows[:, :, None].astype(np.int16), columns[:, None, :].astype(np.int16)
    cells = rows * n + columns
    if geometry.transposable:
        turned = rng.bounded(rng.draw(keys, position), 2)[:, None, None]
        cells = np.where(turned, columns * n + rows, cells)
    return tokens, cells.reshape(count, n * n)


def _lines(keys: np.ndarray, position: int, blocks: int, size: int) -> tuple[np.ndarray, int]:
    """A random order of lines that keeps blocks together, int64 [keys, blocks * size], and the next draw's position."""
    outer = rng.permutations(keys, position, blocks)
    position += blocks - 1
    inner = []
    for _ in range(blocks):
        inner.append(rng.permutations(keys, position, size))
        position += size - 1
    lines = outer[:, :, None] * size + np.stack(inner, axis=1)
    return lines.reshape(len(keys), blocks * size), position


def to_text(values: np.ndarray) -> str:
    """Text form of one grid of values."""
    return "".join("." if value == 0 else SYMBOLS[value - 1] for value in values.tolist())


def from_text(text: str) -> np.ndarray:
    """Values of a text form, uint8. Raises ValueError for an invalid character."""
    return np.array([0 if char in ".0" else SYMBOLS.index(char) + 1 for char in text], dtype=np.uint8)


BLANKS = ".0*_- "
"""Characters of a blank cell."""


def symbol_values(side: int) -> np.ndarray:
    """Value of each byte in a text form, 255 if it is not a symbol of an n x n grid: uint8 [256]."""
    table = np.full(256, 255, dtype=np.uint8)
    for value, symbol in enumerate(SYMBOLS[:side], start=1):
        table[ord(symbol)] = value
    table[[ord(blank) for blank in BLANKS]] = 0
    return table


def cells_of(text: str) -> str:
    """A puzzle's characters: its spaces are blank cells if nothing else is, else they only part its rows."""
    parted = any(blank in text for blank in BLANKS.strip())
    return "".join(text.split()) if parted else "".join(text.splitlines()).replace(" ", ".")


def parse_puzzles(geometry: Geometry, texts: Sequence[str], places: Sequence[str] = ("",)) -> np.ndarray:
    """Parse puzzles to values, uint8 [B, S]; 0: blank.

    Args:
        places: where each text is from, put before the message of an error.

    Raises:
        UserError: the first text that is no puzzle of this size.
    """
    for text, place in zip(texts, places, strict=True):
        if len(text) != geometry.cells:
            raise UserError(f"{place}the puzzle has {len(text)} characters, not {geometry.cells}")
    characters = np.frombuffer("".join(texts).encode("latin-1", "replace"), dtype=np.uint8)
    values = symbol_values(geometry.side)[characters].reshape(len(texts), -1)
    if (values == 255).any():
        row, column = (int(index[0]) for index in np.nonzero(values == 255))
        raise UserError(
            f"{places[row]}the puzzle has {texts[row][column]!r} at character {column + 1}: write "
            f"1-{SYMBOLS[geometry.side - 1]} for clues and . or 0 for blanks"
        )
    return values


def broken_rule(geometry: Geometry, answers: np.ndarray) -> np.ndarray:
    """Whether each grid has a row, column or box without all values: bool [len(answers)]."""
    bits = np.left_shift(np.uint32(1), answers.astype(np.uint32))
    wanted = np.uint32((1 << (geometry.side + 1)) - 2)
    bad = np.zeros(len(answers), dtype=bool)
    for unit in geometry.units:
        bad |= np.bitwise_or.reduce(bits[:, unit], axis=1) != wanted
    return bad
