"""Grids and block sizes of the Pallas kernels, and their lowering for a TPU program.

No TPU is needed: jax lowers the kernels anywhere and can interpret them on a CPU.
"""

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from trm.backends.tpu import kernels
from trm.study.activations import LANES, padded_length

jax.config.update("jax_platforms", "cpu")  # jax only lowers the kernels: torch_xla owns the TPU


class Kernel(NamedTuple):
    """One kernel call: half a block (token or channel mixing) for the puzzles of one device."""

    kind: str
    """token, channel or attention."""
    backward: bool
    keep: bool
    """Forward: also return what backward needs."""
    added: int
    """Forward: streams that are added to the first one."""
    puzzles: int
    length: int
    width: int
    inner: int
    """Inner width of the SwiGLU; for attention, the width of a head."""
    rope: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind} {'backward' if self.backward else 'forward'}"

    @property
    def padded(self) -> int:
        """Padded number of tokens."""
        return padded_length(self.length)

    @property
    def tile(self) -> int:
        """Puzzles per grid step: one for token mixing, otherwise as many as fit into the 16 MiB of VMEM beside the
        weights, with an even number of grid steps (one half for each core)."""
        count = 1
        if self.kind == "token":
            return count
        most = 256 if self.kind == "channel" else 448 if self.backward or self.keep else 896
        while self.puzzles % (4 * count) == 0 and 2 * count * self.padded <= most:
            count *= 2
        return count


class Product(NamedTuple):
    """One use's part of a weight's gradient: left^T right, of activations [N, P] and [N, Q] with few rows."""

    rows: int
    left: int
    right: int
    added: bool
    """Whether the sum over earlier uses is given, float32 [P, Q]."""
    dtype: str
    """Of the result."""

    @property
    def name(self) -> str:
        return "weight gradient"

    @property
    def tile(self) -> int:
        """Columns of the wider operand in one grid step: as many as fit into VMEM beside the whole of the other one, in
        an even number of grid steps if possible."""
        wide = max(self.left, self.right)
        return next(width for width in (384, 256, LANES) if wide % (2 * width) == 0 or width == LANES)


def jitted(kernel: Kernel | Product, interpret: bool = False) -> Callable[..., Any]:
    """The jitted kernel; it returns a list of arrays (for their shapes see `output_shapes`).

    Arguments of forward: input [N, D], the `added` streams, weights, rotary tables. Backward takes three streams in
    place of the input: the gradient, the sum before the norm, and for token mixing the input, for channel mixing the
    derivatives, for attention q, k and v. A product takes both operands and the sum.
    """
    if isinstance(kernel, Product):
        return _jitted_product(kernel, interpret)
    attention = kernel.length, kernel.inner, kernel.padded, kernel.rope
    bodies = {
        ("token", False): functools.partial(kernels.token_forward, kernel.length, kernel.keep, kernel.added),
        ("token", True): functools.partial(kernels.token_backward, kernel.length),
        ("channel", False): functools.partial(kernels.channel_forward, kernel.keep),
        ("channel", True): kernels.channel_backward,
        ("attention", False): functools.partial(
            kernels.attention_forward, *attention, kernel.keep, kernel.added
        ),
        ("attention", True): functools.partial(kernels.attention_backward, *attention),
    }
    streams, tiles = 3 if kernel.backward else 1 + kernel.added, kernel.puzzles // kernel.tile
    grid: tuple[int, ...] = (tiles,)
    semantics: tuple[str, ...] = ("parallel",)
    if kernel.kind == "token" and kernel.backward:
        grid, semantics = (2, tiles // 2), ("parallel", "arbitrary")

    def tiled(width: int) -> pl.BlockSpec:
        return pl.BlockSpec(
            (kernel.tile * kernel.padded, width),
            lambda *at: (at[0] if len(at) == 1 else at[0] * grid[1] + at[1], 0),
        )

    def untiled(array: Any) -> pl.BlockSpec:
        return pl.BlockSpec(array.shape, lambda *at: (0,) * len(array.shape))

    def run(*arrays: Any) -> list[Any]:
        shapes, specs = [], []
        for shape, dtype in output_shapes(kernel):
            shapes.append(jax.ShapeDtypeStruct(shape, getattr(jnp, dtype)))
            per_core = dtype == "float32"
            specs.append(
                pl.BlockSpec((1, *shape[1:]), lambda i, j: (i, 0, 0)) if per_core else tiled(shape[-1])
            )
        results: list[Any] = pl.pallas_call(
            bodies[kernel.kind, kernel.backward],
            out_shape=shapes,
            grid=grid,
            in_specs=[tiled(array.shape[1]) for array in arrays[:streams]]
            + [untiled(array) for array in arrays[streams:]],
            out_specs=specs,
            compiler_params=pltpu.CompilerParams(dimension_semantics=semantics),
            interpret=interpret,
            name=kernel.name.replace(" ", "_"),
        )(*arrays)
        return results

    function: Callable[..., Any] = jax.jit(run)
    return function


def _jitted_product(product: Product, interpret: bool) -> Callable[..., Any]:
    wide_left, tile = product.left > product.right, product.tile

    def whole_or_tiled(rows: int, width: int, tiled: bool) -> pl.BlockSpec:
        return pl.BlockSpec((rows, tile if tiled else width), lambda i: (0, i if tiled else 0))

    sums = pl.BlockSpec(
        (tile, product.right) if wide_left else (product.left, tile),
        lambda i: (i, 0) if wide_left else (0, i),
    )

    def run(*arrays: Any) -> list[Any]:
        results: list[Any] = pl.pallas_call(
            kernels.weight_gradient,
            out_shape=[jax.ShapeDtypeStruct(shape, kind) for shape, kind in output_shapes(product)],
            grid=(max(product.left, product.right) // tile,),
            in_specs=[
                whole_or_tiled(product.rows, product.left, wide_left),
                whole_or_tiled(product.rows, product.right, not wide_left),
                *[sums] * product.added,
            ],
            out_specs=[sums],
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
            interpret=interpret,
            name=product.name.replace(" ", "_"),
        )(*arrays)
        return results

    function: Callable[..., Any] = jax.jit(run)
    return function


def output_shapes(kernel: Kernel | Product) -> list[tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of a kernel's results."""
    if isinstance(kernel, Product):
        return [((kernel.left, kernel.right), kernel.dtype)]
    rows, width, inner = kernel.puzzles * kernel.padded, kernel.width, kernel.inner
    if kernel.kind == "token" and kernel.backward:
        sums = [((2, units, kernel.padded), "float32") for units in (2 * inner, inner)]
        return [((rows, width), "bfloat16"), *sums]
    if kernel.backward:
        widths = [width, width, 3 * width if kernel.kind == "attention" else 2 * inner]
    else:
        kept = {"token": [], "attention": [width, 3 * width], "channel": [inner, 2 * inner]}[kernel.kind]
        widths = [width, *([width, *kept, *[width] * bool(kernel.added)] if kernel.keep else [])]
    return [((rows, values), "bfloat16") for values in widths]


@functools.cache
def payload(kernel: Kernel | Product, arguments: tuple[tuple[tuple[int, ...], str], ...]) -> str:
    """The kernel lowered for a TPU: the backend configuration of a `tpu_custom_call`."""
    shapes = [jax.ShapeDtypeStruct(shape, getattr(jnp, dtype)) for shape, dtype in arguments]
    module = jax.export.export(jitted(kernel), platforms=["tpu"])(*shapes).mlir_module()
    match = re.search(r'@tpu_custom_call\(.*?backend_config = "((?:[^"\\]|\\.)*)"', module, re.S)
    assert match is not None
    return re.sub(r"\\([0-9A-Fa-f]{2})", lambda code: chr(int(code.group(1), 16)), match.group(1))
