"""A small matrix product in registers, by the processor's own bfloat16 products (AVX512-BF16).

`product` multiplies up to six rows by a panel of 64 columns; everything larger is loops around it. A panel is
[pairs, 64, 2]: the rows of the second factor in pairs, each pair's columns side by side, as the instruction wants them.
Sums are float32. An address is a tensor of `simd`; steps and places are counted in its elements.
"""

from __future__ import annotations

from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from trm.network.cpu.simd import BF16, F32, I32, I64

PANEL = 64
"""Columns of a panel."""
ROWS = 6
"""Most rows of a tile: 6 x 4 sums fill 24 of the 32 registers."""
_LANES = 16

_FEATURES = binding.get_host_cpu_features()
AVAILABLE = bool(_FEATURES.get("avx512bf16")) and not _FEATURES.get("amx-bf16")
"""Whether the processor has the instruction, and none that beats it (AMX; the library uses that)."""

_SUMS = ir.VectorType(F32, _LANES)
_WORDS = ir.VectorType(I32, _LANES)
_PAIRS = ir.VectorType(BF16, 2 * _LANES)


def _place(builder, pointer, elements, size, kind):
    """The address of a `kind`, `elements` of `size` bytes further on."""
    start = builder.bitcast(pointer, ir.IntType(8).as_pointer())
    offset = builder.mul(elements, ir.Constant(I64, size))
    return builder.bitcast(builder.gep(start, [offset]), kind.as_pointer())


def _load(builder, *place, align):
    value = builder.load(_place(builder, *place))
    value.align = align
    return value


def _in_every_lane(builder, two):
    """A pair of bfloat16 sixteen times."""
    undefined = ir.Constant(_WORDS, ir.Undefined)
    first = builder.insert_element(undefined, two, ir.Constant(I32, 0))
    return builder.bitcast(builder.shuffle_vector(first, undefined, ir.Constant(_WORDS, None)), _PAIRS)


def _emit(builder, rows, adding, a, row_step, pair_step, last, b, pairs, out):
    """The product of `rows` rows, all sums in registers; `last` is the last row that is there."""
    kind = ir.FunctionType(_SUMS, [_SUMS, _PAIRS, _PAIRS])
    multiply = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
    columns = range(PANEL // _LANES)
    cells = [(row, column) for row in range(rows) for column in columns]

    def number(value):
        return ir.Constant(I64, value)

    def sums_of(row, column):
        return out, number(row * PANEL + column * _LANES), 4, _SUMS

    starts = []
    for row in range(rows):
        # rows that are not there repeat the last one; nobody reads their sums
        there = builder.select(builder.icmp_signed("<", number(row), last), number(row), last)
        starts.append(_place(builder, a, builder.mul(row_step, there), 2, I32))
    if adding:
        begun = {cell: _load(builder, *sums_of(*cell), align=64) for cell in cells}
    else:
        begun = dict.fromkeys(cells, ir.Constant(_SUMS, None))

    before = builder.block
    loop, done = builder.append_basic_block("pairs"), builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    pair = builder.phi(I64)
    sums = {cell: builder.phi(_SUMS) for cell in cells}
    first = builder.mul(pair, number(PANEL))
    panel = [
        builder.bitcast(
            _load(builder, b, builder.add(first, number(column * _LANES)), 4, _WORDS, align=64), _PAIRS
        )
        for column in columns
    ]
    step, new = builder.mul(pair, pair_step), {}
    for row in range(rows):
        two = _in_every_lane(builder, _load(builder, starts[row], step, 2, I32, align=2))
        for column in columns:
            new[row, column] = builder.call(multiply, [sums[row, column], two, panel[column]])
    following = builder.add(pair, number(1))
    for phi, start, end in ((pair, number(0), following), *((sums[c], begun[c], new[c]) for c in cells)):
        phi.add_incoming(start, before)
        phi.add_incoming(end, loop)
    builder.cbranch(builder.icmp_signed("<", following, pairs), loop, done)
    builder.position_at_end(done)
    for cell in cells:
        builder.store(new[cell], _place(builder, *sums_of(*cell))).align = 64


def _tile(rows, adding):
    @intrinsic
    def tile(typing, a, row_step, pair_step, last, b, pairs, out):
        def generate(context, builder, signature, args):
            _emit(builder, rows, adding, *args)
            return context.get_dummy_value()

        steps = (types.int64,) * 3
        return types.void(a, *steps, b, types.int64, types.CPointer(types.float32)), generate

    return tile


@njit
def tile_rows(left):
    """Rows of the next tile when `left` are left: full ones but for the last, whose number alone may be odd."""
    if left % 2 == 1 and left >= 5:
        if left <= 7:
            return 5 if left == 5 else 4
        left -= 5
    return 6 if left % 6 == 0 else min(left, 4)


def _product(adding):
    six, five, four = (_tile(rows, adding) for rows in (6, 5, 4))

    @njit
    def product(a, row_step, pair_step, rows, b, pairs, out):
        if rows == 6:
            six(a, row_step, pair_step, rows - 1, b, pairs, out)
        elif rows == 5:
            five(a, row_step, pair_step, rows - 1, b, pairs, out)
        else:
            four(a, row_step, pair_step, rows - 1, b, pairs, out)

    return product


product, add_product = _product(adding=False), _product(adding=True)
"""out[rows, 64] = a @ b, or that added to what `out` holds; less than four rows spoil `out` up to the fourth.

A pair of columns of `a` lies side by side; `rows` is of `tile_rows`; there is at least one pair.
"""


@intrinsic
def moved(typing, address, elements):
    """The address `elements` further on."""

    def generate(context, builder, signature, args):
        return builder.gep(args[0], [args[1]])

    return address(address, types.int64), generate


@intrinsic
def as_wide(typing, address):
    """The same address as one of float32."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], F32.as_pointer())

    return types.CPointer(types.float32)(address), generate
