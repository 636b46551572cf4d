"""Which models the Triton kernels compute, and by which tiles.

`tiles.json` holds a tile per architecture, operation and shape; `*` matches all other shapes. Nothing is timed at run
time, so two runs on the same machine execute the same programs. The batch size is not part of a shape: a smaller last
batch is computed like the others. `python -m benchmarks.gpu_tiles` measures tiles on a GPU and updates the table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

from trm.io import read_json
from trm.study.flops import inner_width
from trm.study.schema import ModelConfig

TABLE = Path(__file__).with_name("tiles.json")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
LONGEST = 128
"""Most tokens that fit into one program."""
TOKEN_TILE = ("COLUMNS", "INNER", "num_warps", "num_stages")
OPERATIONS = {
    "channels": ("ROWS", "COLUMNS", "DEPTH", "num_warps", "num_stages"),
    "tokens": TOKEN_TILE,
    "tokens backward": TOKEN_TILE,
}
"""Kernel constants and launch options of each operation, in the order in which a tile lists them. The shape of
`channels` is width and inner width, of the others length and inner width."""
Tile = dict[str, int]
Table = Mapping[str, Mapping[str, str]]
"""Tiles by operation and shape, for one architecture."""


def architecture_of(device: torch.device) -> str:
    """The key of a device in the table: 90 for Hopper, 80 for every other GPU; the interpreter uses 90."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] != 9:
        return "80"
    return "90"


@cache
def table(architecture: str) -> Table:
    """The tiles of the repository for one architecture."""
    entries = read_json(TABLE)[architecture]
    return {operation: entries[operation] for operation in OPERATIONS}


def parse(operation: str, tile: str) -> Tile:
    """A kernel's constants and options from an entry of the table, such as 64x64x4x2."""
    return dict(zip(OPERATIONS[operation], map(int, tile.split("x")), strict=True))


def chosen(table: Table, operation: str, *shape: int) -> Tile:
    """The tile for an operation on a shape."""
    tiles = table[operation]
    return parse(operation, tiles.get("x".join(map(str, shape)), tiles["*"]))


def cover(model: ModelConfig, cells: int, dtype: torch.dtype, architecture: str) -> bool:
    """Whether the kernels compute this model on puzzles of `cells` cells.

    In float32, products cannot use tensor cores, and a kernel takes minutes to compile. Half a head must be a power of
    two of at least 16 channels. On sm_80 attention spills up to 11 KB per thread.
    """
    length = cells + model.puzzle_tokens
    if length > LONGEST or not (dtype.itemsize == 2 or INTERPRETED):
        return False
    if model.mixer == "mlp":
        inner, choices = inner_width(model, length), table(architecture)
        return all(
            inner % chosen(choices, name, length, inner)["INNER"] == 0
            for name in OPERATIONS
            if name != "channels"
        )
    half, odd = divmod(model.d_model // model.heads, 2)
    return architecture == "90" and not odd and half >= 16 and half & (half - 1) == 0
