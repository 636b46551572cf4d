"""Lossless coding of arrays of floats that belong together: byte planes, each in an order and form that deflates well.

Bits are rotated by one, so that the first plane is the exponent and the sign is the last bit. Three things make the
planes smaller still, and all are undone to the bit, whatever the numbers are (NaN, infinities, denormals):

- an array `near` another one (a moving average and its weights) is stored as the difference of the two's places in the
  order of all floats, cells with the same exponent side by side;
- exponents that depend on another array's (first and second moment) are put side by side where those are equal;
- exponents that depend on row and column (second moments) are stored as differences from both's means.

Nothing repeats in such planes, so deflate only counts bytes (Huffman) or runs: both are fast.
"""

from __future__ import annotations

import zlib

import numpy as np

ROWS, COLUMNS = 256, 512
"""Window over a flat array whose rows' and columns' mean exponents are told; widths of layers are multiples of it."""
FINE = 4
"""The means are told to a quarter."""
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def deflated(plane: np.ndarray) -> np.ndarray:
    """The smallest of three: the plane itself (uint8), its bytes by frequency, its runs."""
    best = np.ascontiguousarray(plane)
    for strategy in (zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE):
        coder = zlib.compressobj(1, zlib.DEFLATED, 15, 9, strategy)
        found = coder.compress(plane.tobytes()) + coder.flush()
        if len(found) < len(best):
            best = np.frombuffer(found, np.uint8)
    return best


def inflated(plane: np.ndarray, count: int) -> np.ndarray:
    """The `count` bytes of `deflated`. Raises ValueError where they are not that many."""
    if len(plane) != count:
        try:
            plane = np.frombuffer(zlib.decompress(plane.tobytes()), np.uint8)
        except zlib.error as error:
            raise ValueError(f"a plane cannot be inflated ({error})") from None
        if len(plane) != count:
            raise ValueError(f"a plane holds {len(plane)} bytes, not {count}")
    return plane


def rotated(bits: np.ndarray) -> np.ndarray:
    """Bits (unsigned) with the first one moved to the end: exponent, fraction, sign."""
    return bits << 1 | bits >> (8 * bits.itemsize - 1)


def unrotated(bits: np.ndarray) -> np.ndarray:
    """The bits of `rotated`."""
    return bits >> 1 | bits << (8 * bits.itemsize - 1)


def exponents(bits: np.ndarray) -> np.ndarray:
    """First byte after the sign, uint8: the exponent of float32 and bfloat16."""
    return (rotated(bits) >> (8 * (bits.itemsize - 1))).astype(np.uint8)


def _place(bits: np.ndarray) -> np.ndarray:
    """Place in the order of all floats: -inf first, then rising."""
    top = bits.dtype.type(1) << bits.dtype.type(8 * bits.itemsize - 1)
    return np.where(bits & top, ~bits, bits | top)


def _from_place(places: np.ndarray) -> np.ndarray:
    top = places.dtype.type(1) << places.dtype.type(8 * places.itemsize - 1)
    return np.where(places & top, places ^ top, ~places)


def _folded(difference: np.ndarray) -> np.ndarray:
    """0, -1, 1, -2, ... (modulo the width) as 0, 1, 2, 3, ..."""
    return difference << 1 ^ (0 - (difference >> (8 * difference.itemsize - 1)))


def _unfolded(folded: np.ndarray) -> np.ndarray:
    return folded >> 1 ^ (0 - (folded & 1))


def _split(bits: np.ndarray) -> list[np.ndarray]:
    """Bytes, the most significant ones first: uint8 [n] each."""
    return [(bits >> (8 * k)).astype(np.uint8) for k in reversed(range(bits.itemsize))]


def _joined(planes: list[np.ndarray]) -> np.ndarray:
    width = len(planes)
    bits = np.zeros(len(planes[0]), UNSIGNED[width])
    for plane in planes:
        bits = (bits << 8 if width > 1 else bits) | plane
    return bits


def _windows(count: int) -> list[tuple[int, int]]:
    """First element and rows of each window over an array; what is left of the last row stays outside."""
    whole = count // COLUMNS
    return [(row * COLUMNS, min(ROWS, whole - row)) for row in range(0, whole, ROWS)]


def _expected(levels: np.ndarray, rows: int) -> np.ndarray:
    """Expected bytes of a window [rows, COLUMNS] from its rows' and columns' means in units of 1 / FINE."""
    levels = levels.astype(np.int32)
    middle = (levels[:rows].sum() + rows // 2) // rows
    return ((levels[:rows, None] + levels[None, rows:] - middle + FINE // 2) // FINE).astype(np.uint8)


def levelled(plane: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes less what row and column let expect (uint8, modulo 256), and the means that tell it (uint16)."""
    out, told = plane.copy(), []
    for first, rows in _windows(len(plane)):
        cells = slice(first, first + rows * COLUMNS)
        window = plane[cells].reshape(rows, COLUMNS).astype(np.int64)
        means = [(FINE * window.sum(axis) + size // 2) // size for axis, size in ((1, COLUMNS), (0, rows))]
        told.append(np.concatenate(means).astype(np.uint16))
        out[cells] -= _expected(told[-1], rows).reshape(-1)
    return out, np.concatenate([*told, np.empty(0, np.uint16)])


def unlevelled(plane: np.ndarray, told: np.ndarray) -> np.ndarray:
    """The bytes of `levelled`."""
    out, at = plane.copy(), 0
    for first, rows in _windows(len(plane)):
        levels = told[at : at + rows + COLUMNS]
        out[first : first + rows * COLUMNS] += _expected(levels, rows).reshape(-1)
        at += rows + COLUMNS
    return out


def levels_of(count: int) -> int:
    """Means that `levelled` tells of so many bytes."""
    return sum(rows + COLUMNS for _, rows in _windows(count))


def encode(
    bits: np.ndarray, near: np.ndarray | None = None, beside: np.ndarray | None = None, level: bool = False
) -> list[np.ndarray]:
    """Deflated planes of an array.

    Args:
        bits: unsigned integers [n], the floats' bits.
        near: bits [n] of an array, of the same type, whose numbers are almost the same.
        beside: bits [n] of an array whose exponents say something about this one's.
        level: whether the exponents depend on row and column.
    """
    told: list[np.ndarray] = []
    if near is not None:
        order = np.argsort(exponents(near), kind="stable")
        planes = _split(_folded(_place(bits) - _place(near))[order])
    else:
        planes = _split(rotated(bits))
        if beside is not None:
            planes[0] = planes[0][np.argsort(exponents(beside), kind="stable")]
        elif level:
            planes[0], means = levelled(planes[0])
            told = _split(means)
    return [deflated(plane) for plane in (*planes, *told)]


def decode(
    planes: list[np.ndarray],
    count: int,
    width: int,
    near: np.ndarray | None = None,
    beside: np.ndarray | None = None,
    level: bool = False,
) -> np.ndarray:
    """The `count` bit patterns of `width` bytes each that `encode` was given, with the same arrays beside them."""
    found = [inflated(plane, count) for plane in planes[:width]]
    if near is not None:
        order = np.argsort(exponents(near), kind="stable")
        folded = np.empty(count, UNSIGNED[width])
        folded[order] = _joined(found)
        return _from_place(_unfolded(folded) + _place(near))
    if beside is not None:
        plane = np.empty(count, np.uint8)
        plane[np.argsort(exponents(beside), kind="stable")] = found[0]
        found[0] = plane
    elif level:
        told = _joined([inflated(plane, levels_of(count)) for plane in planes[width:]])
        found[0] = unlevelled(found[0], told)
    return unrotated(_joined(found))
