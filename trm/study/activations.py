"""What a block application keeps for backward, by shape alone, and which models the TPU's kernels support."""

from typing import NamedTuple

LANES = 128
"""Values in one row of a vector register."""
MAX_WEIGHT = 512 * 1536
"""Largest weight, in values, that fits twice into a core's 16 MiB of VMEM beside the tiles."""
WORKING_APPLICATIONS = 2
"""Memory of the kernels for temporaries, in block applications' worth of activations."""


def padded_length(length: int) -> int:
    """`length` tokens rounded up to a multiple of eight, the rows of a vector register."""
    return -(-length // 8) * 8


class Block(NamedTuple):
    """Sizes of a block and of the tokens that it is applied to."""

    length: int
    width: int
    inner: int
    """Of the channel SwiGLU."""
    token_inner: int | None
    """Of the token SwiGLU; None: attention."""
    heads: int

    def has_kernels(self) -> bool:
        """Whether the kernels support a bfloat16 model of such blocks."""
        if self.token_inner is None:
            head = self.width // self.heads
            mixer = LANES % head == 0 and head >= 16
        else:
            mixer = self.token_inner % 256 == 0
        small = self.width * self.inner <= MAX_WEIGHT and self.length <= LANES
        return mixer and self.width % LANES == 0 and self.inner % 256 == 0 and small

    def kernel_bytes(self, rows: int) -> int:
        """Bytes that the kernels keep for `rows` puzzles, in bfloat16: four streams, the channel SwiGLU's hidden values
        and derivatives, and for attention its output, q, k and v."""
        streams = 8 if self.token_inner is None else 4
        return 2 * rows * padded_length(self.length) * (streams * self.width + 3 * self.inner)

    def bytes(self, rows: int, itemsize: int, xla: bool = False) -> int:
        """Bytes without kernels: input, sums and output, each SwiGLU's gate, up and product, or q, k, v and attention's
        output; with `xla` also the scores, and of the token SwiGLU's streams two more (within 15 % of what libtpu's
        compiler reports)."""
        if self.token_inner is None:
            scores = 2 * self.heads * self.length if xla else 0
            return itemsize * rows * self.length * (8 * self.width + 3 * self.inner + scores)
        streams = self.length * ((6 if xla else 4) * self.width + 3 * self.inner)
        return itemsize * rows * (streams + 3 * self.width * self.token_inner)
