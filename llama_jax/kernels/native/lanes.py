"""Operations on 16 floats or 16 integers, each one or a few LLVM operations."""

from __future__ import annotations

import operator

from llvmlite import ir
from numba import types
from numba.extending import overload

from llama_jax.kernels.native.machine import F32, I8, I32, function, pointer
from llama_jax.kernels.native.vectors import FLOATS, INTEGERS, LANES, F, I, every, llvm, operation, spread, vector_load


@operation(FLOATS, types.int64)
def load(b, address):
    return vector_load(b, address, F, 4)


@operation(types.void, types.int64, FLOATS)
def store(b, address, value):
    b.store(value, pointer(b, address, F), align=4)


@operation(FLOATS, types.float32)
def splat(b, value):
    return spread(b, value, F)


@operation(INTEGERS, types.int32)
def splat_integer(b, value):
    return spread(b, value, I)


@operation(FLOATS, FLOATS, FLOATS, FLOATS)
def fma(b, x, y, z):
    """x y + z, in one rounding where the processor has such an instruction."""
    return llvm(b, "llvm.fmuladd.v16f32", F, x, y, z)


@operation(FLOATS, FLOATS, FLOATS)
def add(b, x, y):
    return b.fadd(x, y)


@operation(FLOATS, FLOATS, FLOATS)
def subtract(b, x, y):
    return b.fsub(x, y)


@operation(FLOATS, FLOATS, FLOATS)
def multiply(b, x, y):
    return b.fmul(x, y)


@operation(FLOATS, FLOATS, FLOATS)
def divide(b, x, y):
    return b.fdiv(x, y)


@operation(FLOATS, FLOATS, FLOATS)
def larger(b, x, y):
    return b.select(b.fcmp_ordered(">", x, y), x, y)


@operation(FLOATS, FLOATS, FLOATS)
def smaller(b, x, y):
    return b.select(b.fcmp_ordered("<", x, y), x, y)


@operation(INTEGERS, FLOATS)
def magnitude(b, x):
    """|x| as the integer that has the same bits: in the same order, with NaN above all."""
    return b.and_(b.bitcast(x, I), every(I, 0x7FFFFFFF))


@operation(INTEGERS, INTEGERS, INTEGERS)
def larger_integer(b, x, y):
    return b.select(b.icmp_signed(">", x, y), x, y)


@operation(types.float32, types.int32)
def float_of_bits(b, x):
    return b.bitcast(x, F32)


@operation(FLOATS, FLOATS)
def nearest(b, x):
    """Round to an integer, ties to even, for |x| < 2^22: beyond 1.5 * 2^23 a float has no fraction left to keep."""
    magic = every(F, 12582912.0)
    return b.fsub(b.fadd(x, magic), magic)


@operation(types.float32, FLOATS)
def first(b, x):
    return b.extract_element(x, ir.Constant(I32, 0))


@operation(FLOATS, INTEGERS)
def to_floats(b, x):
    return b.sitofp(x, F)


@operation(INTEGERS, FLOATS)
def to_integers(b, x):
    return b.fptosi(x, I)


@operation(FLOATS, INTEGERS)
def power_of_two(b, n):
    """2^n for -127 < n < 128: n as the exponent of a float."""
    return b.bitcast(b.shl(b.add(n, every(I, 127)), every(I, 23)), F)


def reduction(combine, kind, result):
    """Fold a vector by halves, always in the same order."""

    def emit(b, x):
        for half in (8, 4, 2, 1):
            lanes = [ir.Constant(ir.VectorType(I32, half), list(range(at, at + half))) for at in (0, half)]
            low, high = (b.shuffle_vector(x, ir.Constant(x.type, ir.Undefined), at) for at in lanes)
            x = combine(b, low, high)
        return b.extract_element(x, ir.Constant(I32, 0))

    return operation(result, kind)(emit)


total = reduction(lambda b, x, y: b.fadd(x, y), FLOATS, types.float32)
largest = reduction(lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y), FLOATS, types.float32)
largest_integer = reduction(lambda b, x, y: b.select(b.icmp_signed(">", x, y), x, y), INTEGERS, types.int32)
count = reduction(lambda b, x, y: b.add(x, y), INTEGERS, types.int32)


def operators():
    """a + b, a - b, a * b and a / b of floats, a + b of integers."""

    @overload(operator.add)
    def _(x, y):
        if x is FLOATS and y is FLOATS:
            return lambda x, y: add(x, y)
        return (lambda x, y: add_integers(x, y)) if x is INTEGERS and y is INTEGERS else None

    @overload(operator.sub)
    def _(x, y):
        return (lambda x, y: subtract(x, y)) if x is FLOATS and y is FLOATS else None

    @overload(operator.mul)
    def _(x, y):
        return (lambda x, y: multiply(x, y)) if x is FLOATS and y is FLOATS else None

    @overload(operator.truediv)
    def _(x, y):
        return (lambda x, y: divide(x, y)) if x is FLOATS and y is FLOATS else None


@operation(INTEGERS, types.int64)
def load_unsigned(b, address):
    """16 bytes, as the numbers 0 to 255."""
    return b.zext(b.load(pointer(b, address, ir.VectorType(I8, LANES)), align=1), I)


@operation(INTEGERS, types.int64)
def load_signed(b, address):
    """16 bytes, as the numbers -128 to 127."""
    return b.sext(b.load(pointer(b, address, ir.VectorType(I8, LANES)), align=1), I)


@operation(INTEGERS, INTEGERS, types.int32, types.int32)
def field(b, x, at, mask):
    """The bits of `mask` from bit `at` on."""
    return b.and_(b.lshr(x, spread(b, at, I)), spread(b, mask, I))


@operation(INTEGERS, INTEGERS, types.int32)
def raised(b, x, by):
    """x 2^by."""
    return b.shl(x, spread(b, by, I))


@operation(INTEGERS, INTEGERS, INTEGERS)
def add_integers(b, x, y):
    return b.add(x, y)


operators()


@function
def exponential(x):
    """e^x by Cephes' polynomial (expf.c, https://www.netlib.org/cephes/), within 2e-7; 0 below -87, no infinity above
    88."""
    f = types.float32
    x = smaller(larger(x, splat(f(-87.0))), splat(f(88.0)))
    n = nearest(x * splat(f(1.44269504)))
    r = fma(n, splat(f(2.12194440e-4)), fma(n, splat(f(-0.693359375)), x))
    y = splat(f(1.9875691500e-4))
    y = fma(y, r, splat(f(1.3981999507e-3)))
    y = fma(y, r, splat(f(8.3334519073e-3)))
    y = fma(y, r, splat(f(4.1665795894e-2)))
    y = fma(y, r, splat(f(1.6666665459e-1)))
    y = fma(y, r, splat(f(5.0000001201e-1)))
    y = fma(y, r * r, r + splat(f(1.0)))
    return y * power_of_two(to_integers(n))
