"""Triton kernels and the network built from them. Importing any module but this one requires triton.

Shapes as in `trm.model`: L tokens, B rows, D width, I inner width; M = B * D columns of the token mixing, N = L * B
rows of the channel mixing. Kernels compute in float32 (in float64 for float64 tensors).
With TRITON_INTERPRET=1 they run on the CPU, which is how they are tested against float64.
"""

from __future__ import annotations

import importlib.util


def available() -> bool:
    """Whether triton is installed."""
    return importlib.util.find_spec("triton") is not None
