"""What several tasks need of grids: numbers and hashes of equal rows, and the symmetries of a square."""

from hashlib import blake2b

import numpy as np


def number_rows(rows: np.ndarray) -> np.ndarray:
    """Number distinct rows 0, 1, ... by first appearance: int32 [len(rows)]."""
    if not len(rows):
        return np.zeros(0, dtype=np.int32)
    rows = np.ascontiguousarray(rows)
    packed = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).ravel()
    _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
    numbers = np.empty(len(first), dtype=np.int32)
    numbers[np.argsort(first, kind="stable")] = np.arange(len(first), dtype=np.int32)
    return numbers[inverse]


def hashes(rows: np.ndarray) -> np.ndarray:
    """Equal numbers for equal rows, uint64 [len(rows)]."""
    digests = b"".join(blake2b(row.tobytes(), digest_size=8).digest() for row in rows)
    return np.frombuffer(digests, dtype="<u8")


def dihedral_cells(side: int) -> np.ndarray:
    """The 8 symmetries of a square as source cells, int16 [8, side * side]; the first is the identity.

    Numbers 0-3: rotation counter-clockwise by 0-3 quarters; 4: left-right mirror; 5: top-bottom mirror; 6: transpose;
    7: transpose along the other diagonal.
    """
    cell = np.arange(side * side).reshape(side, side)
    views = [np.rot90(cell, quarter) for quarter in range(4)]
    views += [np.fliplr(cell), np.flipud(cell), cell.T, np.rot90(cell.T, 2)]
    return np.stack([view.reshape(-1) for view in views]).astype(np.int16)
