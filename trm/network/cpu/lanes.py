"""Sixteen float32 at once as a value of numba's: what a loop is compiled to, when LLVM must not be asked to find it.

`lanes(address, index)` reads 16 elements, of bfloat16 or float32, `put` writes them; +, - and * work lane by lane.
"""

from __future__ import annotations

import operator

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from trm.network.cpu.simd import BF16, F32, I16, I32, I64

WIDTH = 16
_FLOATS = ir.VectorType(F32, WIDTH)
_INTS = ir.VectorType(I32, WIDTH)
_SHORTS = ir.VectorType(I16, WIDTH)
_BRAINS = ir.VectorType(BF16, WIDTH)


class _Lanes(types.Type):
    def __init__(self) -> None:
        super().__init__("Lanes")


LANES = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _FLOATS)


def same(value):
    """16 times a number."""
    return ir.Constant(_FLOATS, [value] * WIDTH)


def _ints(value):
    return ir.Constant(_INTS, [value] * WIDTH)


def _call(builder, name, *args):
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * len(args))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v16f32"), args)


def _rounded(builder, value):
    return builder.bitcast(builder.fptrunc(value, _BRAINS), _SHORTS)


@intrinsic
def lanes(typing, address, index):
    """Elements [index, index + 16)."""

    def generate(context, builder, signature, args):
        wide = signature.args[0].dtype == types.float32
        where = builder.bitcast(builder.gep(args[0], [args[1]]), (_FLOATS if wide else _SHORTS).as_pointer())
        value = builder.load(where)
        value.align = 4 if wide else 2
        if wide:
            return value
        return builder.bitcast(builder.shl(builder.zext(value, _INTS), _ints(16)), _FLOATS)

    return LANES(address, types.int64), generate


@intrinsic
def put(typing, address, index, value):
    """Write elements [index, index + 16)."""

    def generate(context, builder, signature, args):
        wide = signature.args[0].dtype == types.float32
        value = args[2] if wide else _rounded(builder, args[2])
        where = builder.bitcast(builder.gep(args[0], [args[1]]), value.type.as_pointer())
        builder.store(value, where).align = 4 if wide else 2
        return context.get_dummy_value()

    return types.void(address, types.int64, LANES), generate


@intrinsic
def put_pairs(typing, address, index, first, second):
    """Write 16 pairs of bfloat16, each `first` and `second` of one lane, from pair `index` on."""

    def generate(context, builder, signature, args):
        low, high = (builder.zext(_rounded(builder, v), _INTS) for v in args[2:])
        where = builder.gep(builder.bitcast(args[0], I32.as_pointer()), [args[1]])
        both = builder.or_(low, builder.shl(high, _ints(16)))
        builder.store(both, builder.bitcast(where, _INTS.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(address, types.int64, LANES, LANES), generate


@intrinsic
def half(typing, address, index, second):
    """The first or second ones of 16 pairs of bfloat16, from pair `index` on."""

    def generate(context, builder, signature, args):
        where = builder.gep(builder.bitcast(args[0], I32.as_pointer()), [args[1]])
        both = builder.load(builder.bitcast(where, _INTS.as_pointer()))
        both.align = 4
        last = builder.icmp_signed("!=", args[2], ir.Constant(I64, 0))
        bits = builder.select(last, builder.and_(both, _ints(0xFFFF0000)), builder.shl(both, _ints(16)))
        return builder.bitcast(bits, _FLOATS)

    return LANES(address, types.int64, types.int64), generate


@intrinsic
def spread(typing, number):
    """A number in every lane."""

    def generate(context, builder, signature, args):
        one = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), args[0], ir.Constant(I32, 0))
        return builder.shuffle_vector(one, one, ir.Constant(_INTS, None))

    return LANES(types.float32), generate


@intrinsic
def added(typing, value):
    """Sum of the lanes."""

    def generate(context, builder, signature, args):
        kind = ir.FunctionType(F32, [F32, _FLOATS])
        add = cgutils.get_or_insert_function(builder.module, kind, "llvm.vector.reduce.fadd.v16f32")
        return builder.call(add, [ir.Constant(F32, 0.0), args[0]], fastmath=("reassoc",))

    return types.float32(LANES), generate


@intrinsic
def rounded(typing, value):
    """The nearest numbers that bfloat16 can hold."""

    def generate(context, builder, signature, args):
        return builder.bitcast(
            builder.shl(builder.zext(_rounded(builder, args[0]), _INTS), _ints(16)), _FLOATS
        )

    return LANES(LANES), generate


# 2^f for |f| up to 1/2, highest power first: a polynomial through Chebyshev's nodes, relative error 4e-6
_NODES = np.cos(np.pi * (np.arange(5) + 0.5) / 5) / 2
_POWER = [float(c) for c in np.polyfit(_NODES, 2**_NODES, 4)]
_EVERY_LANE, _NEAREST, _AS_SET = ir.Constant(I16, -1), ir.Constant(I32, 0), ir.Constant(I32, 4)


def _instruction(builder, name, kinds, *args):
    kind = ir.FunctionType(_FLOATS, kinds)
    return builder.call(
        cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.avx512.{name}.ps.512"), args
    )


@intrinsic
def sigmoid(typing, value):
    """1 / (1 + e^-x), relative error 4e-6; NaN and infinity may give any number: multiply by x."""

    def generate(context, builder, signature, args):
        exponent = _call(builder, "minnum", builder.fmul(args[0], same(-1 / np.log(2))), same(126.0))
        kinds = [_FLOATS, I32, _FLOATS, I16, I32]
        given = exponent, _NEAREST, exponent, _EVERY_LANE, _AS_SET
        whole = _instruction(builder, "mask.rndscale", kinds, *given)
        rest = builder.fsub(exponent, whole)
        square = builder.fmul(rest, rest)
        low = _call(builder, "fma", rest, same(_POWER[3]), same(_POWER[4]))
        high = _call(builder, "fma", rest, same(_POWER[1]), same(_POWER[2]))
        high = _call(builder, "fma", square, same(_POWER[0]), high)
        power = _call(builder, "fma", square, high, low)
        kinds = [_FLOATS, _FLOATS, _FLOATS, I16, I32]
        power = _instruction(builder, "mask.scalef", kinds, power, whole, power, _EVERY_LANE, _AS_SET)
        divisor = builder.fadd(power, same(1.0))
        kinds = [_FLOATS, _FLOATS, I16]
        guess = _instruction(builder, "rcp14", kinds, divisor, divisor, _EVERY_LANE)
        # one step of Newton's
        lack = _call(builder, "fma", builder.fneg(divisor), guess, same(1.0))
        return _call(builder, "fma", guess, lack, guess)

    return LANES(LANES), generate


@intrinsic
def transpose(typing, source, stride, target, target_stride):
    """Sixteen rows of 16 pairs of bfloat16, `stride` elements apart, become 16 rows of as many, columns first."""

    def generate(context, builder, signature, args):
        given, stride, target, target_stride = args
        rows = []
        for i in range(WIDTH):
            where = builder.gep(given, [builder.mul(stride, ir.Constant(I64, i))])
            rows.append(builder.load(builder.bitcast(where, _INTS.as_pointer())))
            rows[-1].align = 2
        # four rounds, each of which exchanges one bit of the row's number with one of the column's
        for bit in (8, 4, 2, 1):
            for i in range(WIDTH):
                if not i & bit:
                    a, b = rows[i], rows[i | bit]
                    low = [c if not c & bit else (c ^ bit) + WIDTH for c in range(WIDTH)]
                    high = [c | bit if not c & bit else c + WIDTH for c in range(WIDTH)]
                    pick = (ir.Constant(_INTS, places) for places in (low, high))
                    rows[i], rows[i | bit] = (builder.shuffle_vector(a, b, places) for places in pick)
        for i in range(WIDTH):
            where = builder.gep(target, [builder.mul(target_stride, ir.Constant(I64, i))])
            builder.store(rows[i], builder.bitcast(where, _INTS.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64), generate


def _lane_by_lane(of, name):
    @intrinsic
    def apply(typing, a, b):
        def generate(context, builder, signature, args):
            return getattr(builder, name)(*args, flags=("contract",))

        return LANES(LANES, LANES), generate

    @overload(of)
    def operation(a, b):
        if a is LANES and b is LANES:
            return lambda a, b: apply(a, b)
        return None


for _of in (operator.add, operator.iadd):
    _lane_by_lane(_of, "fadd")
_lane_by_lane(operator.sub, "fsub")
_lane_by_lane(operator.mul, "fmul")
