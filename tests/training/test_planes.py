"""Arrays come back from their planes to the bit, whatever the numbers are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trm.training.checkpoints.planes import (
    COLUMNS,
    ROWS,
    UNSIGNED,
    decode,
    deflated,
    encode,
    inflated,
    levelled,
    levels_of,
)

SPECIAL = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-45,
    -1e-45,
    1.1754944e-38,
    3.4028235e38,
    -3.4028235e38,
    1.0,
    -1.0,
]
numbers = st.one_of(st.sampled_from(SPECIAL), st.floats(width=32))
bits32 = st.one_of(
    st.lists(numbers, max_size=40).map(lambda values: np.array(values, np.float32).view(np.uint32)),
    st.lists(st.integers(0, 2**32 - 1), max_size=40).map(lambda values: np.array(values, np.uint32)),
)


@settings(max_examples=60, deadline=None)
@given(bits32, st.data())
def test_32_bits(bits, data):
    other = data.draw(st.permutations(bits.tolist()).map(lambda values: np.array(values, np.uint32)))
    step = data.draw(st.integers(0, 2**32 - 1))
    near = bits + np.uint32(step)
    for relations in ({}, {"near": near}, {"near": other}, {"beside": other}, {"level": True}):
        back = decode(encode(bits, **relations), len(bits), 4, **relations)
        assert back.dtype == np.uint32
        assert (back == bits).all()


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([0, 1, 511, 512, 1300, 512 * 257 + 9]),
)
def test_every_width_and_windows_of_any_length(seed, width, count):
    generator = np.random.default_rng(seed)
    bits, other = (
        generator.integers(0, 256, (count, width), np.uint8).view(UNSIGNED[width])[:, 0] for _ in range(2)
    )
    for relations in ({}, {"near": other}, {"beside": other}, {"level": True}):
        assert (decode(encode(bits, **relations), count, width, **relations) == bits).all()


def test_special_numbers_beside_each_other():
    """An average of infinities, and weights that are no numbers."""
    params = np.repeat(np.array(SPECIAL, np.float32), len(SPECIAL)).view(np.uint32)
    average = np.tile(np.array(SPECIAL, np.float32), len(SPECIAL)).view(np.uint32)
    assert (decode(encode(average, near=params), len(params), 4, near=params) == average).all()


def test_each_relation_makes_planes_smaller():
    generator = np.random.default_rng(0)
    count = ROWS * COLUMNS
    weights = generator.normal(0, 0.04, count).astype(np.float32)
    scales = np.exp2(4 * generator.normal(size=(ROWS, 1)) + 4 * generator.normal(size=COLUMNS)).reshape(-1)
    moments = (scales * (0.5 + generator.random(count))).astype(np.float32)
    first = (np.sqrt(scales) * generator.normal(size=count)).astype(np.float32)
    average = (weights + generator.normal(0, 1e-3, count)).astype(np.float32)

    def size(array, **relations):
        return sum(map(len, encode(array.view(np.uint32), **relations)))

    assert size(average, near=weights.view(np.uint32)) < 0.85 * size(average)
    assert size(moments, level=True) < 0.95 * size(moments)
    assert size(first, beside=moments.view(np.uint32)) < 0.98 * size(first)


def test_levels_are_those_of_rows_and_columns():
    plane = (100 + 3 * np.arange(5)[:, None] + np.arange(COLUMNS) % 7).astype(np.uint8).reshape(-1)
    left, told = levelled(plane)
    assert np.abs(left.astype(np.int8)).max() <= 1
    assert len(told) == levels_of(len(plane)) == 5 + COLUMNS


def test_broken_planes_are_refused():
    plane = deflated(np.zeros(1000, np.uint8))
    with pytest.raises(ValueError, match="cannot be inflated"):
        inflated(plane[:-3], 1000)
    with pytest.raises(ValueError, match="holds 1000 bytes, not 999"):
        inflated(plane, 999)
