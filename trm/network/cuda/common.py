"""What all kernels share: the dtype they compute in, and the dtype of a product's operands."""

from __future__ import annotations

import os

import torch
import triton.language as tl
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
}


def wide(tensor: Tensor) -> tl.dtype:
    """The dtype that a kernel computes in."""
    return tl.float64 if tensor.dtype == torch.float64 else tl.float32


def operand(tensor: Tensor) -> tl.dtype:
    """The dtype of a product's operands; the interpreter cannot multiply bfloat16."""
    if INTERPRETED and tensor.dtype == torch.bfloat16:
        return tl.float32
    return DTYPES[tensor.dtype]


def power(count: int, least: int = 16) -> int:
    """The smallest power of two that holds `count`, and at least `least`."""
    return max(least, 1 << (count - 1).bit_length())
