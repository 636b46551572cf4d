"""Kernel and tile size of each operation, looked up by architecture and shape.

Nothing is timed at run time, so two runs on the same machine execute the same programs. `tiles.json` holds one choice
per architecture, operation and shape: a tile, `triton` (a kernel without tiles) or `library` (cuBLAS products with
elementwise kernels between them); `*` matches all other shapes. The batch size is not part of a shape: a smaller last
batch is computed like the others. `python -m benchmarks.gpu_tiles` measures the candidates on a GPU and updates the
table.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from trm.io import read_json

TABLE = Path(__file__).with_name("tiles.json")
LIBRARY, KERNEL = "library", "triton"
Table = Mapping[str, Mapping[str, str]]
"""Choices by operation and shape, for one architecture."""


class Operation(NamedTuple):
    """An operation with more than one implementation."""

    shape: tuple[str, ...]
    """Names of the sizes that the choice depends on."""
    tile: tuple[str, ...]
    """Kernel constants and launch options, in the order in which a tile lists them."""
    candidates: Mapping[str, tuple[str, ...]]
    """Tiles to benchmark, by architecture."""


TOKEN_TILE = ("COLUMNS", "INNER", "num_warps", "num_stages")
OPERATIONS = {
    "channels": Operation(
        ("width", "inner"),
        ("ROWS", "COLUMNS", "DEPTH", "num_warps", "num_stages"),
        {
            "80": ("128x128x64x8x3", "128x64x64x8x4", "256x64x64x8x3"),
            "90": ("128x128x64x8x3", "128x64x64x4x4", "128x64x64x8x4", "256x64x64x8x3"),
        },
    ),
    "tokens": Operation(
        ("length", "inner"),
        TOKEN_TILE,
        {"80": ("64x64x4x2", "64x64x4x1"), "90": ("64x64x4x2", "64x64x4x1", "64x128x8x1", "128x128x8x1")},
    ),
    "tokens backward": Operation(
        ("length", "inner"),
        TOKEN_TILE,
        {"80": ("32x64x8x2", "16x64x4x2"), "90": ("32x64x8x2", "32x64x4x2", "16x64x4x2")},
    ),
    "attention": Operation(("length", "head width"), (), {"80": (), "90": (KERNEL,)}),
}
"""tests/backends/cuda/test_compiled.py compiles every candidate. On sm_90 its products are `wgmma` alone, it spills at
most 80 bytes per thread (wider token tiles spill hundreds, and with INNER 32 most products become the older `mma`), and
it fits into shared memory. On sm_80 it fits into the 99 KiB of 8.6, 8.9 and 12.0 as well; the attention kernel spills
up to 11 KB per thread there, so the library computes attention."""


def architecture_of(device: torch.device) -> str:
    """The key of a device in the table: 90 for Hopper, 80 for every other GPU; the interpreter uses 90."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] != 9:
        return "80"
    return "90"


@cache
def table(architecture: str) -> Table:
    """The choices of the repository for one architecture."""
    entries = read_json(TABLE)[architecture]
    return {operation: entries[operation] for operation in OPERATIONS}


def parse(operation: str, choice: str) -> dict[str, int] | None:
    """A kernel's constants and options from a choice of the table; None for `library`."""
    if choice == LIBRARY:
        return None
    numbers = [] if choice == KERNEL else [int(word) for word in choice.split("x")]
    return dict(zip(OPERATIONS[operation].tile, numbers, strict=True))


def chosen(table: Table, operation: str, *shape: int) -> dict[str, int] | None:
    """The tile for an operation on a shape; None: the library computes it."""
    choices = table[operation]
    return parse(operation, choices.get("x".join(map(str, shape)), choices["*"]))
