"""Intrinsics that numba lacks: bfloat16 loads and stores, a vectorisable exp, raw addresses, an atomic counter.

Every kernel takes one pointer to a block of int64 words (see `launch`). The pointer's element type is the
storage type of the kernel's tensors: uint16 for bfloat16 (numba has no such type), or float32. All arithmetic is in
float32; stores to bfloat16 round to nearest even.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

MATH: dict[str, Any] = {"fastmath": {"contract", "reassoc", "arcp", "nsz"}, "error_model": "numpy"}
"""Sums may be reordered (the order is fixed at compilation); NaN and infinity keep their meaning."""

I16, I32, I64, F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_AS_WRITTEN = ("contract",)
"""Flags of additions whose order matters; an instruction with explicit flags does not get those of MATH."""


class _BFloat(ir.Type):
    """LLVM's bfloat, which llvmlite does not name."""

    def __str__(self) -> str:
        return "bfloat"


BF16 = _BFloat()
_ROUNDS = bool(binding.get_host_cpu_features().get("avx512bf16"))
"""Whether the processor rounds to bfloat16 in one instruction; otherwise it takes five integer ones."""


def _words(builder, block):
    return builder.bitcast(block, I64.as_pointer())


@intrinsic
def word(typing, block, index):
    """The block's word at `index`, int64."""

    def generate(context, builder, signature, args):
        return builder.load(builder.gep(_words(builder, args[0]), [args[1]]))

    return types.int64(block, types.int64), generate


@intrinsic
def claim(typing, block, index):
    """Add 1 to the block's word at `index`, atomically; returns the old value."""

    def generate(context, builder, signature, args):
        address = builder.gep(_words(builder, args[0]), [args[1]])
        return builder.atomic_rmw("add", address, ir.Constant(I64, 1), "seq_cst")

    return types.int64(block, types.int64), generate


@intrinsic
def tensor(typing, block, index):
    """The word at `index` as the address of a tensor in the block's dtype."""

    def generate(context, builder, signature, args):
        address = builder.load(builder.gep(_words(builder, args[0]), [args[1]]))
        return builder.inttoptr(address, args[0].type)

    return block(block, types.int64), generate


@intrinsic
def wide_tensor(typing, block, index):
    """The word at `index` as the address of a float32 tensor."""

    def generate(context, builder, signature, args):
        address = builder.load(builder.gep(_words(builder, args[0]), [args[1]]))
        return builder.inttoptr(address, F32.as_pointer())

    return types.CPointer(types.float32)(block, types.int64), generate


@intrinsic
def load(typing, pointer, index):
    """Element `index`, as float32."""

    def generate(context, builder, signature, args):
        value = builder.load(builder.gep(args[0], [args[1]]))
        if signature.args[0].dtype == types.float32:
            return value
        return builder.bitcast(builder.shl(builder.zext(value, I32), ir.Constant(I32, 16)), F32)

    return types.float32(pointer, types.int64), generate


@intrinsic
def store(typing, pointer, index, value):
    """Write a float32 as element `index`."""

    def generate(context, builder, signature, args):
        value = args[2]
        if signature.args[0].dtype != types.float32 and _ROUNDS:
            value = builder.bitcast(builder.fptrunc(value, BF16), I16)
        elif signature.args[0].dtype != types.float32:
            bits = builder.bitcast(value, I32)
            odd = builder.and_(builder.lshr(bits, ir.Constant(I32, 16)), ir.Constant(I32, 1))
            bits = builder.add(bits, builder.add(odd, ir.Constant(I32, 0x7FFF)))
            value = builder.trunc(builder.lshr(bits, ir.Constant(I32, 16)), I16)
        builder.store(value, builder.gep(args[0], [args[1]]))
        return context.get_dummy_value()

    return types.void(pointer, types.int64, types.float32), generate


@intrinsic
def hidden(typing, index):
    """The index, passed through an empty inline assembly statement.

    LLVM checks once per loop nest whether tensors overlap. Rows of gate and up are interleaved in one tensor and are
    disjoint only within a row: without this barrier the check covers the whole nest, fails, and the loop stays scalar.
    """

    def generate(context, builder, signature, args):
        return builder.asm(ir.FunctionType(I64, [I64]), "", "=r,0", [args[0]], side_effect=False)

    return types.int64(types.int64), generate


# e^r for |r| up to ln(2) / 2, highest power first: an interpolation at Chebyshev nodes, relative error 2e-8
_NODES = np.cos(np.pi * (np.arange(7) + 0.5) / 7) * np.log(2) / 2
_EXP = [float(c) for c in np.polyfit(_NODES, np.exp(_NODES), 6)]
_ROUNDER = 1.5 * 2**23
"""Added to a small float32, it leaves the nearest integer in the lowest bits."""
# ln(2) in two parts; a whole number times the first is exact
_LN2_HIGH = 0.693359375
_LN2_LOW = float(np.log(2)) - _LN2_HIGH


@intrinsic
def _bounded_exp(typing, x):
    """e^x for x in [-87, 87]."""

    def generate(context, builder, signature, args):
        def number(value):
            return ir.Constant(F32, value)

        shifted = builder.fma(args[0], number(1 / np.log(2)), number(_ROUNDER))
        whole = builder.fsub(shifted, number(_ROUNDER), flags=_AS_WRITTEN)
        rest = builder.fma(whole, number(-_LN2_LOW), builder.fma(whole, number(-_LN2_HIGH), args[0]))
        # in pairs: a shorter dependency chain beats fewer operations
        square = builder.fmul(rest, rest)
        pairs = [builder.fma(rest, number(high), number(low)) for high, low in zip(_EXP[-2::-2], _EXP[::-2])]
        power = builder.fma(square, number(_EXP[0]), pairs[2])
        power = builder.fma(builder.fmul(square, square), power, builder.fma(square, pairs[1], pairs[0]))
        # into the exponent; higher bits are shifted out
        exponent = builder.shl(builder.bitcast(shifted, I32), ir.Constant(I32, 23))
        return builder.bitcast(builder.add(builder.bitcast(power, I32), exponent), F32)

    return types.float32(types.float32), generate


ONE = np.float32(1)
_LOWEST, _HIGHEST = np.float32(-87), np.float32(87)


@njit(**MATH)
def _exp(x):
    """e^x in float32, between e^-87 and e^87."""
    return _bounded_exp(min(max(x, _LOWEST), _HIGHEST))


@njit(**MATH)
def exp(x):
    """Like `_exp`, but NaN and infinity give NaN, so that an overflow is visible."""
    return _exp(x) + (x - x)


@njit(**MATH)
def sigmoid(x):
    """1 / (1 + e^-x) in float32; NaN may give any number: multiply by x."""
    return ONE / (ONE + _exp(-x))


@intrinsic
def fetch_line(typing, address, elements):
    """Prefetch the cache line of an element about to be written; writes wait for their line too."""

    def generate(context, builder, signature, args):
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, I32, I32, I32])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        place = builder.bitcast(builder.gep(args[0], [args[1]]), pointer)
        write, keep_in_cache, data = 1, 3, 1
        builder.call(prefetch, [place, *(ir.Constant(I32, v) for v in (write, keep_in_cache, data))])
        return context.get_dummy_value()

    return types.void(address, types.int64), generate
