"""`trm.data.rng` for compiled code: the same numbers, one at a time."""

import numpy as np

from trm.compiled import njit

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _32, _1 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32), np.uint64(1)


@njit
def mix(x):
    """See `rng.mix`."""
    x = (x ^ (x >> _30)) * _A
    x = (x ^ (x >> _27)) * _B
    return x ^ (x >> _31)


@njit
def child_key(root, part):
    """See `rng.key`."""
    return mix((root ^ GOLDEN) + np.uint64(part))


@njit
def bounded(key, position, bound):
    """See `rng.bounded` and `rng.draw`."""
    draw = mix(key + (np.uint64(position) + _1) * GOLDEN)
    return np.int64(((draw >> _32) * np.uint64(bound)) >> _32)


@njit
def shuffle(order, key, position):
    """Fisher-Yates in place with draws position, position+1, ...; returns the next unused position."""
    for last in range(len(order) - 1, 0, -1):
        other = bounded(key, position, last + 1)
        position += 1
        order[last], order[other] = order[other], order[last]
    return position
