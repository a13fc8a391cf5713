"""Half floats in memory: read and written by an instruction, or by arithmetic that is exact for all finite values where
there is none (or none that we know)."""

from __future__ import annotations

from numba import types

from llama_jax.kernels.native.machine import pointer
from llama_jax.kernels.native.vectors import FLOATS, ISA, F, H, I, S, every, operation, vector_load


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
    half = b.select(b.icmp_signed("<", rest, every(I, 113 << 23)), small, normal)
    half = b.select(b.icmp_signed(">=", rest, every(I, 143 << 23)), every(I, 0x7C00), half)
    return b.trunc(b.or_(half, b.lshr(sign, every(I, 16))), S)


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
