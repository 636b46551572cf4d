"""Counter-based random numbers: every draw is a pure function of a key and a position.

NumPy's streams may change between versions; these integers are the same on every machine, in every version and in any
order of draws. The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). `rng_kernels.py`
has it for compiled code.
"""

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1

PURPOSES = {
    "augment": 1,
    "epoch": 2,
    "copy": 3,
    "generate": 4,
    "split": 5,
    "example": 6,
    "inspect": 7,
    "noise": 8,
    "hint": 9,
    "held out": 10,
    "symmetry": 12,
    "restart": 13,
    "view": 14,
}
"""Purpose -> number; streams of different purposes are independent for every seed."""


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser of each element."""
    x = x ^ (x >> np.uint64(30))
    x = x * np.uint64(0xBF58476D1CE4E5B9)
    x = x ^ (x >> np.uint64(27))
    x = x * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _words(values: np.ndarray | int) -> NDArray[np.uint64]:
    # at least one-dimensional: overflow is intended, and NumPy would warn about it for scalars
    return np.atleast_1d(np.asarray(values)).astype(np.uint64)


def root_key(seed: int, purpose: str) -> int:
    """Root key of all draws for one purpose and seed (any integer)."""
    first = mix(_words(seed & _MASK)) + _words(PURPOSES[purpose] * GOLDEN & _MASK)
    return int(mix(first)[0])


def key(root: int, *parts: np.ndarray | int) -> NDArray[np.uint64]:
    """Keys below `root`, one for each element of the broadcast integer `parts`; at least one-dimensional."""
    keys = np.array([root & _MASK], dtype=np.uint64)
    for part in parts:
        keys = mix((keys ^ np.uint64(GOLDEN)) + _words(part))
    return keys


def draw(keys: NDArray[np.uint64], position: int | np.ndarray) -> NDArray[np.uint64]:
    """The draw at a position of each key's stream: uniform uint64."""
    return mix(keys + (_words(position) + np.uint64(1)) * np.uint64(GOLDEN))


def bounded(draws: NDArray[np.uint64], bound: int | np.ndarray) -> NDArray[np.int64]:
    """Draws scaled to 0..bound-1, int64; the bias is below bound / 2^32."""
    scaled = ((draws >> np.uint64(32)) * np.asarray(bound).astype(np.uint64)) >> np.uint64(32)
    return scaled.astype(np.int64)


def permutations(keys: np.ndarray, position: int, length: int) -> np.ndarray:
    """A permutation of 0..length-1 per key, by Fisher-Yates with draws position, position+1, ...: [keys, length]."""
    order = np.tile(np.arange(length, dtype=np.int64), (len(keys), 1))
    rows = np.arange(len(keys))
    for step, last in enumerate(range(length - 1, 0, -1)):
        other = bounded(draw(keys, position + step), last + 1)
        held = order[rows, other]
        order[rows, other] = order[:, last]
        order[:, last] = held
    return order


def shuffled(root: int, count: int) -> np.ndarray:
    """A permutation of 0..count-1, int64, by sorting random keys."""
    return np.argsort(draw(np.full(count, root, dtype=np.uint64), np.arange(count)), kind="stable")
