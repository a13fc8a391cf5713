"""Operations on 64 bytes, four for each of 16 lanes. Only their products differ between instruction sets."""

from __future__ import annotations

from llvmlite import ir
from numba import types

from llama_jax.kernels.native.machine import I8, I16, I32, function, pointer
from llama_jax.kernels.native.vectors import (
    BYTES,
    INTEGERS,
    ISA,
    PAIRS,
    B,
    I,
    P,
    every,
    llvm,
    operation,
    spread,
    vector_load,
)


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


@operation(BYTES, BYTES, types.int32, types.int32)
def bits(b, x, right, mask):
    """Some bits of each byte, moved down by `right`, or up where it is below 0: constants, or this is slow."""
    down = b.lshr(x, spread(b, b.trunc(right, I8), B))
    up = b.shl(x, spread(b, b.trunc(b.neg(right), I8), B))
    moved = b.select(b.icmp_signed("<", right, ir.Constant(I32, 0)), up, down)
    return b.and_(moved, spread(b, b.trunc(mask, I8), B))


@operation(BYTES, BYTES, BYTES)
def either(b, x, y):
    return b.or_(x, y)


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
    """Products of neighbours must stay within 32767 (`pairs_avx2`)."""
    return widened(b, total, pairs_avx2(b, unsigned, signed))


def pairs_avx2(b, unsigned, signed):
    """vpmaddubsw: products of neighbours, added in 16 bits, which saturates."""
    half = ir.VectorType(I16, 16)
    parts = zip(halves(b, unsigned), halves(b, signed), strict=True)
    return joined(b, *(llvm(b, "llvm.x86.avx2.pmadd.ub.sw", half, u, s) for u, s in parts))


def widened(b, total, pairs):
    quads, half = ir.VectorType(I32, 8), ir.VectorType(I16, 16)
    parts = zip(halves(b, total), halves(b, pairs), strict=True)
    return joined(b, *(b.add(t, llvm(b, "llvm.x86.avx2.pmadd.wd", quads, p, every(half, 1))) for t, p in parts))


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


@operation(PAIRS, BYTES, BYTES)
def pairs(b, unsigned, signed):
    """Sums of two products each, for ISA "avx2" alone: to be added up while they stay within 32767."""
    return pairs_avx2(b, unsigned, signed) if ISA == "avx2" else ir.Constant(P, ir.Undefined)


@operation(PAIRS, PAIRS, PAIRS)
def add_pairs(b, x, y):
    return b.add(x, y)


@operation(INTEGERS, INTEGERS, PAIRS)
def add_widened(b, total, x):
    """total + in each lane the sum of its two numbers."""
    return widened(b, total, x) if ISA == "avx2" else total


@function
def dot8(total, x, y, q):
    """total + dot products of two vectors of at most 6 bits a byte with 8 activations at q, the same in every lane."""
    if ISA == "avx2":
        return add_widened(total, add_pairs(pairs(x, load_four(q)), pairs(y, load_four(q + 4))))
    return dot4(dot4(total, x, load_four(q)), y, load_four(q + 4))


@function
def dot16(total, x, y, z, w, q):
    """As `dot8`, of four vectors of at most 5 bits a byte with 16 activations."""
    if ISA == "avx2":
        first = add_pairs(pairs(x, load_four(q)), pairs(y, load_four(q + 4)))
        second = add_pairs(pairs(z, load_four(q + 8)), pairs(w, load_four(q + 12)))
        return add_widened(total, add_pairs(first, second))
    return dot8(dot8(total, x, y, q), z, w, q + 8)


@operation(BYTES, BYTES, BYTES)
def with_sign_of(b, x, y):
    """x, negated where y is negative, 0 if y is 0."""
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
