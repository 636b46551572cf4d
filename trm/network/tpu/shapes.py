"""Shapes that the kernels, their calls and the recursion share. Needs neither jax nor torch_xla."""

LANES = 128
"""Values in one row of a vector register."""


def padded_length(length: int) -> int:
    """Tokens rounded up to the eight rows of a vector register."""
    return -(-length // 8) * 8
