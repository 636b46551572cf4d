"""What numba lacks: bfloat16 in memory, exp that vectorises, raw addresses, and a counter that threads share.

Every kernel takes one pointer to a block of int64 words (see `launch`). The pointer's element type says how the
kernel's tensors lie in memory: uint16 for bfloat16 (numba has no such type), float32 for itself. All arithmetic is
float32; stores to bfloat16 round to nearest even.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

MATH = {"fastmath": {"contract", "reassoc", "arcp", "nsz"}, "error_model": "numpy"}
"""Sums may be reordered (the order is fixed at compilation); NaN and infinity keep their meaning."""

_I16, _I32, _I64, _F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()


def _words(builder, block):
    return builder.bitcast(block, _I64.as_pointer())


@intrinsic
def word(typing, block, index):
    """The block's word at `index`, int64."""

    def generate(context, builder, signature, args):
        return builder.load(builder.gep(_words(builder, args[0]), [args[1]]))

    return types.int64(block, types.int64), generate


@intrinsic
def claim(typing, block):
    """Add 1 to the block's first word, for all threads at once; returns what it was."""

    def generate(context, builder, signature, args):
        return builder.atomic_rmw("add", _words(builder, args[0]), ir.Constant(_I64, 1), "seq_cst")

    return types.int64(block), generate


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
        return builder.inttoptr(address, _F32.as_pointer())

    return types.CPointer(types.float32)(block, types.int64), generate


@intrinsic
def load(typing, pointer, index):
    """Element `index`, as float32."""

    def generate(context, builder, signature, args):
        value = builder.load(builder.gep(args[0], [args[1]]))
        if signature.args[0].dtype == types.float32:
            return value
        return builder.bitcast(builder.shl(builder.zext(value, _I32), ir.Constant(_I32, 16)), _F32)

    return types.float32(pointer, types.int64), generate


@intrinsic
def store(typing, pointer, index, value):
    """Write a float32 as element `index`."""

    def generate(context, builder, signature, args):
        value = args[2]
        if signature.args[0].dtype != types.float32:
            bits = builder.bitcast(value, _I32)
            odd = builder.and_(builder.lshr(bits, ir.Constant(_I32, 16)), ir.Constant(_I32, 1))
            bits = builder.add(bits, builder.add(odd, ir.Constant(_I32, 0x7FFF)))
            value = builder.trunc(builder.lshr(bits, ir.Constant(_I32, 16)), _I16)
        builder.store(value, builder.gep(args[0], [args[1]]))
        return context.get_dummy_value()

    return types.void(pointer, types.int64, types.float32), generate


@intrinsic
def hidden(typing, index):
    """The index, through an assembler statement that does nothing.

    LLVM tests once for a whole nest of loops whether its tensors overlap. Rows of gate and up lie in turns in one
    tensor: only within a row are they apart, so the test must not look beyond it, or the loop stays scalar.
    """

    def generate(context, builder, signature, args):
        return builder.asm(ir.FunctionType(_I64, [_I64]), "", "=r,0", [args[0]], side_effect=False)

    return types.int64(types.int64), generate


# 2^r on [-1/2, 1/2]: Taylor, highest power first; relative error 1e-8
_EXP2 = [float(np.log(2) ** k / np.prod(np.arange(1.0, k + 1))) for k in range(7, -1, -1)]


@intrinsic
def _exp2(typing, x):
    """2^x for x in [-126, 127]."""

    def generate(context, builder, signature, args):
        nearest = builder.module.declare_intrinsic("llvm.rint", [_F32])
        whole = builder.call(nearest, [args[0]])
        rest = builder.fsub(args[0], whole)
        power = ir.Constant(_F32, _EXP2[0])
        for coefficient in _EXP2[1:]:
            power = builder.fma(power, rest, ir.Constant(_F32, coefficient))
        exponent = builder.add(builder.fptosi(whole, _I32), ir.Constant(_I32, 127))
        return builder.fmul(power, builder.bitcast(builder.shl(exponent, ir.Constant(_I32, 23)), _F32))

    return types.float32(types.float32), generate


ONE = np.float32(1)
_LOG2E = np.float32(1 / np.log(2))
_LOWEST, _HIGHEST = np.float32(-126), np.float32(126)


@njit(**MATH)
def exp(x):
    """e^x in float32, between 2^-126 and 2^126; NaN stays NaN, so that an overflow shows."""
    power = x * _LOG2E
    return _exp2(min(max(power, _LOWEST), _HIGHEST)) + (x - x)


@njit(**MATH)
def sigmoid(x):
    """1 / (1 + e^-x) in float32."""
    return ONE / (ONE + exp(-x))
