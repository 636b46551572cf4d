"""Calls of the Pallas kernels: grids and blocks of each, and the form in which a TPU program holds them.

Needs no TPU: a kernel is lowered for one wherever jax is installed, and can be interpreted on a CPU.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from trm.network.tpu import kernels as xla_kernels
from trm.network.tpu.shapes import padded_length

jax.config.update("jax_platforms", "cpu")  # jax only lowers kernels here: the TPU is torch_xla's


class Half(NamedTuple):
    """One kernel call: half a block for the puzzles of one device."""

    kind: str
    """token, channel or attention."""
    backward: bool
    keep: bool
    """Forward: also return the sum before the norm, and the input if it was added up."""
    added: bool
    """Forward: the input comes as two streams to be added."""
    puzzles: int
    length: int
    width: int
    inner: int
    """Of the SwiGLU; for attention the width of a head."""
    rope: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind} {'backward' if self.backward else 'forward'}"

    @property
    def padded(self) -> int:
        """Tokens with padding."""
        return padded_length(self.length)

    @property
    def tile(self) -> int:
        """Puzzles a grid step: one where tokens are mixed, else as many as the core's 16 MiB hold beside the weights,
        with as many steps for each core."""
        count = 1
        if self.kind == "token":
            return count
        most = 256 if self.kind == "channel" else 448 if self.backward or self.keep else 896
        while self.puzzles % (4 * count) == 0 and 2 * count * self.padded <= most:
            count *= 2
        return count


def function(half: Half, interpret: bool = False) -> Callable[..., Any]:
    """The jitted kernel of one half; returns a list of arrays (`outputs` tells their shapes).

    Arguments: input [N, D] [and what is to be added to it], weights, rotary tables. Backward, instead of the input:
    gradient, sum before the norm, and the tokens' input, the channels' derivatives or attention's q, k and v.
    """
    kernels = {
        ("token", False): functools.partial(xla_kernels.token_forward, half.length, half.keep, half.added),
        ("token", True): functools.partial(xla_kernels.token_backward, half.length),
        ("channel", False): functools.partial(xla_kernels.channel_forward, half.keep),
        ("channel", True): xla_kernels.channel_backward,
        ("attention", False): functools.partial(
            xla_kernels.attention_forward,
            half.length,
            half.inner,
            half.padded,
            half.rope,
            half.keep,
            half.added,
        ),
        ("attention", True): functools.partial(
            xla_kernels.attention_backward, half.length, half.inner, half.padded, half.rope
        ),
    }
    streams, count = 3 if half.backward else 1 + half.added, half.puzzles // half.tile
    grid: tuple[int, ...] = (count,)
    semantics: tuple[str, ...] = ("parallel",)
    if half.kind == "token" and half.backward:
        grid, semantics = (2, count // 2), ("parallel", "arbitrary")

    def block(width: int) -> pl.BlockSpec:
        return pl.BlockSpec(
            (half.tile * half.padded, width),
            lambda *at: (at[0] if len(at) == 1 else at[0] * grid[1] + at[1], 0),
        )

    def whole(array: Any) -> pl.BlockSpec:
        return pl.BlockSpec(array.shape, lambda *at: (0,) * len(array.shape))

    def run(*arrays: Any) -> list[Any]:
        shapes, specs = [], []
        for shape, dtype in outputs(half):
            shapes.append(jax.ShapeDtypeStruct(shape, getattr(jnp, dtype)))
            partial = dtype == "float32"
            specs.append(
                pl.BlockSpec((1, *shape[1:]), lambda i, j: (i, 0, 0)) if partial else block(shape[-1])
            )
        results: list[Any] = pl.pallas_call(
            kernels[half.kind, half.backward],
            out_shape=shapes,
            grid=grid,
            in_specs=[block(array.shape[1]) for array in arrays[:streams]]
            + [whole(array) for array in arrays[streams:]],
            out_specs=specs,
            compiler_params=pltpu.CompilerParams(dimension_semantics=semantics),
            interpret=interpret,
            name=half.name.replace(" ", "_"),
        )(*arrays)
        return results

    jitted: Callable[..., Any] = jax.jit(run)
    return jitted


def outputs(half: Half) -> list[tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of a kernel's results."""
    rows, width = half.puzzles * half.padded, half.width
    stream = ((rows, width), "bfloat16")

    def rows_of(values: int) -> tuple[tuple[int, int], str]:
        return (rows, values), "bfloat16"

    if half.kind == "token":
        if half.backward:
            return [stream] + [((2, half.inner, half.padded), "float32")] * 3
        kept = []
    elif half.kind == "attention":
        if half.backward:
            return [stream, stream, rows_of(3 * width)]
        kept = [stream, rows_of(3 * width)]
    else:
        if half.backward:
            return [stream, stream, rows_of(2 * half.inner)]
        kept = [rows_of(half.inner), rows_of(2 * half.inner)]
    return [stream, *([stream, *kept, *[stream] * half.added] if half.keep else [])]


BODIES: dict[str, str] = {}
"""Names of the kernels in programs of this process, by their code."""


@functools.cache
def payload(half: Half, arguments: tuple[tuple[tuple[int, ...], str], ...]) -> str:
    """The kernel as a TPU program reads it: backend configuration of a `tpu_custom_call`. Needs no TPU."""
    shapes = [jax.ShapeDtypeStruct(shape, getattr(jnp, dtype)) for shape, dtype in arguments]
    module = jax.export.export(function(half), platforms=["tpu"])(*shapes).mlir_module()
    found = re.search(r'@tpu_custom_call\(.*?backend_config = "((?:[^"\\]|\\.)*)"', module, re.S)
    assert found is not None
    text = re.sub(r"\\([0-9A-Fa-f]{2})", lambda match: chr(int(match.group(1), 16)), found.group(1))
    BODIES[json.loads(text)["custom_call_config"]["body"]] = half.name
    return text
