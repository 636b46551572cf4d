"""Which models the Pallas kernels of `trm.backends.tpu` support and what they keep for backward, by shape alone."""

LANES = 128
"""Values in one row of a vector register."""
MAX_WEIGHT = 512 * 1536
"""Largest weight, in values, that fits twice into a core's 16 MiB of VMEM beside the tiles."""
WORKING_APPLICATIONS = 2
"""Memory for temporaries, in block applications' worth of activations."""


def padded_length(length: int) -> int:
    """`length` tokens rounded up to a multiple of eight, the rows of a vector register."""
    return -(-length // 8) * 8


def supported(length: int, width: int, inner: int, token_inner: int | None, heads: int) -> bool:
    """Whether the kernels support a bfloat16 model; `token_inner`: of the token MLP, None with attention."""
    if token_inner is None:
        head = width // heads
        mixer = LANES % head == 0 and head >= 16
    else:
        mixer = token_inner % 256 == 0
    return (
        mixer and width % LANES == 0 and inner % 256 == 0 and width * inner <= MAX_WEIGHT and length <= LANES
    )


def activation_bytes(rows: int, length: int, width: int, inner: int, attention: bool) -> int:
    """Bytes of activations that one block application keeps for `rows` puzzles, in bfloat16.

    They are four streams, the channel SwiGLU's hidden values and derivatives, and for attention its output, q, k and v.
    """
    streams = 8 if attention else 4
    return 2 * rows * padded_length(length) * (streams * width + 3 * inner)
