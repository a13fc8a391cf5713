"""Vectors as values: 16 floats, 16 integers, or 64 bytes (four for each of 16 lanes).

Every function is one or a few LLVM operations on logical vectors of 16 lanes, which LLVM splits where registers are
narrower. Only `dot4` and the half floats ask which instruction set the code is for. It comes by an environment
variable, set together with Numba's own target (`llama_jax.kernels.build`).
"""

from __future__ import annotations

import operator
import os

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, overload, register_model

from llama_jax.kernels.native.machine import F16, F32, I8, I16, I32, declared, function, pointer

ISA = os.environ.get("LLAMA_JAX_KERNELS_FOR", "portable")
LANES = 16
F, I, B, H, S = (ir.VectorType(kind, n) for kind, n in ((F32, 16), (I32, 16), (I8, 64), (F16, 16), (I16, 16)))  # noqa: E741


class Vector(types.Type):
    def __init__(self, name, llvm):
        self.llvm = llvm
        super().__init__(name=name)


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, kind.llvm)


FLOATS, INTEGERS, BYTES = Vector("floats16", F), Vector("integers16", I), Vector("bytes64", B)


def operation(result, *arguments):
    """Make an intrinsic of a function (builder, *LLVM values) → LLVM value, None for a store."""

    def make(emit):
        def generate(context, builder, signature, given):
            found = emit(builder, *given)
            return context.get_dummy_value() if found is None else found

        return fixed(result(*arguments), generate)

    return make


def fixed(signature, generate):
    """An intrinsic of this one signature; Numba wants its arity spelled out."""
    makers = (
        lambda: intrinsic(lambda typing: (signature, generate)),
        lambda: intrinsic(lambda typing, a: (signature, generate)),
        lambda: intrinsic(lambda typing, a, b: (signature, generate)),
        lambda: intrinsic(lambda typing, a, b, c: (signature, generate)),
    )
    return makers[len(signature.args)]()


def spread(builder, value, kind):
    """One value in every lane."""
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, kind.count), [0] * kind.count))


def every(kind, value):
    return ir.Constant(kind, [value] * kind.count)


def vector_load(builder, address, kind, align):
    return builder.load(pointer(builder, address, kind), align=align)


def llvm(builder, name, result, *values):
    return builder.call(declared(builder, name, result, [v.type for v in values]), values)


# --- floats


@operation(FLOATS, types.int64)
def load(b, address):
    return vector_load(b, address, F, 4)


@operation(types.void, types.int64, FLOATS)
def store(b, address, value):
    b.store(value, pointer(b, address, F), align=4)


@operation(FLOATS, types.float32)
def splat(b, value):
    return spread(b, value, F)


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


# --- integers and bytes


@operation(INTEGERS, types.int32)
def splat_integer(b, value):
    return spread(b, value, I)


@operation(types.void, types.int64, INTEGERS)
def store_bytes(b, address, value):
    """The 16 integers, each as one byte."""
    narrow = ir.VectorType(I8, 16)
    b.store(b.trunc(value, narrow), pointer(b, address, narrow), align=1)


@operation(BYTES, types.int64)
def load_bytes(b, address):
    return vector_load(b, address, B, 1)


@operation(BYTES, types.int64)
def load_four(b, address):
    """Four bytes, in every lane the same."""
    return b.bitcast(spread(b, b.load(pointer(b, address, I32), align=1), I), B)


@operation(BYTES, BYTES)
def low(b, x):
    return b.and_(x, every(B, 15))


@operation(BYTES, BYTES)
def high(b, x):
    return b.lshr(x, every(B, 4))


@operation(types.void, types.int64)
def prefetch(b, address):
    """Ask for the 64 bytes there, which need not be ours: a prefetch never faults."""
    kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    function = b.module.globals.get("llvm.prefetch.p0") or ir.Function(b.module, kind, "llvm.prefetch.p0")
    b.call(function, [pointer(b, address, I8), *(ir.Constant(I32, n) for n in (0, 2, 1))])


def halves(b, x):
    """A vector of 64 bytes or 16 integers as two of half its length."""
    n = x.type.count // 2
    lanes = (ir.Constant(ir.VectorType(I32, n), list(range(at, at + n))) for at in (0, n))
    return [b.shuffle_vector(x, ir.Constant(x.type, ir.Undefined), at) for at in lanes]


def joined(b, low, high):
    n = low.type.count
    return b.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, 2 * n), list(range(2 * n))))


def dot4_vnni512(b, total, unsigned, signed):
    return llvm(b, "llvm.x86.avx512.vpdpbusd.512", I, total, unsigned, signed)


def dot4_vnni256(b, total, unsigned, signed):
    parts = zip(halves(b, total), halves(b, unsigned), halves(b, signed), strict=True)
    return joined(b, *(llvm(b, "llvm.x86.avx512.vpdpbusd.256", t.type, t, u, s) for t, u, s in parts))


def dot4_avx2(b, total, unsigned, signed):
    """vpmaddubsw adds pairs in 16 bits and saturates: products of neighbours must stay within 32767 (see
    `products.octets`)."""
    pairs, quads = ir.VectorType(I16, 16), ir.VectorType(I32, 8)
    found = []
    for t, u, s in zip(halves(b, total), halves(b, unsigned), halves(b, signed), strict=True):
        two = llvm(b, "llvm.x86.avx2.pmadd.ub.sw", pairs, u, s)
        found.append(b.add(t, llvm(b, "llvm.x86.avx2.pmadd.wd", quads, two, every(pairs, 1))))
    return joined(b, *found)


def dot4_portable(b, total, unsigned, signed):
    """Products in 32 bits; LLVM knows what its target has for a widening multiplication."""
    wide = ir.VectorType(I32, 64)
    product = b.mul(b.zext(unsigned, wide), b.sext(signed, wide))
    for i in range(4):
        lanes = ir.Constant(I, list(range(i, 64, 4)))
        total = b.add(total, b.shuffle_vector(product, ir.Constant(wide, ir.Undefined), lanes))
    return total


DOT4 = {"avx512vnni": dot4_vnni512, "avx2vnni": dot4_vnni256, "avx2": dot4_avx2, "portable": dot4_portable}


@operation(INTEGERS, INTEGERS, BYTES, BYTES)
def dot4(b, total, unsigned, signed):
    """total + in each lane the sum of four products of unsigned by signed bytes. For ISA "avx2", |unsigned| <= 128."""
    return DOT4[ISA](b, total, unsigned, signed)


@operation(BYTES, BYTES, BYTES)
def with_sign_of(b, x, y):
    """x, negated where y is negative, 0 where y is 0."""
    zero = every(B, 0)
    negated = b.select(b.icmp_signed("<", y, zero), b.sub(zero, x), x)
    return b.select(b.icmp_signed("==", y, zero), zero, negated)


@operation(BYTES, BYTES)
def absolute(b, x):
    zero = every(B, 0)
    return b.select(b.icmp_signed("<", x, zero), b.sub(zero, x), x)


@operation(BYTES, BYTES)
def plus_128(b, x):
    """Signed bytes moved to the range of unsigned ones."""
    return b.xor(x, every(B, -128))


# --- half floats: by instruction, or where there is none (or we do not know of one) by arithmetic that is exact for all
# finite values


def half_to_float(b, bits):
    """Exponent and fraction moved to a float's place, the exponent raised by 112. A subnormal half becomes 2^-14 and
    its fraction, less 2^-14: never a subnormal float, which XLA has the processor take for zero."""
    wide = b.zext(bits, I)
    sign = b.shl(b.and_(wide, every(I, 0x8000)), every(I, 16))
    rest = b.shl(b.and_(wide, every(I, 0x7FFF)), every(I, 13))
    small = b.fsub(b.bitcast(b.add(rest, every(I, 113 << 23)), F), every(F, 2.0**-14))
    subnormal = b.icmp_signed("<", rest, every(I, 1 << 23))
    return b.bitcast(b.or_(sign, b.select(subnormal, b.bitcast(small, I), b.add(rest, every(I, 112 << 23)))), F)


def float_to_half(b, x):
    """Round to nearest, ties to even; what is too large becomes infinity."""
    bits = b.bitcast(x, I)
    sign = b.and_(bits, every(I, -(1 << 31)))
    rest = b.xor(bits, sign)
    odd = b.and_(b.lshr(rest, every(I, 13)), every(I, 1))
    normal = b.lshr(b.add(b.add(rest, every(I, 0xFFF - (112 << 23))), odd), every(I, 13))
    small = b.sub(b.bitcast(b.fadd(b.bitcast(rest, F), every(F, 0.5)), I), every(I, 0x3F000000))
    found = b.select(b.icmp_signed("<", rest, every(I, 113 << 23)), small, normal)
    found = b.select(b.icmp_signed(">=", rest, every(I, 143 << 23)), every(I, 0x7C00), found)
    return b.trunc(b.or_(found, b.lshr(sign, every(I, 16))), S)


def floats_of_halves(b, address):
    bits = vector_load(b, address, S, 2)
    return half_to_float(b, bits) if ISA == "portable" else b.fpext(b.bitcast(bits, H), F)


@operation(FLOATS, types.int64)
def load_half(b, address):
    return floats_of_halves(b, address)


@operation(types.void, types.int64, FLOATS)
def store_half(b, address, value):
    bits = float_to_half(b, value) if ISA == "portable" else b.bitcast(b.fptrunc(value, H), S)
    b.store(bits, pointer(b, address, S), align=2)
