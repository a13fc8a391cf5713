"""Products of 16 rows of one run of 32 columns, and single weights, for each type of blocks; `llama_jax.block_types`
describes the layout.

A type is identified by the bytes of its group. Each product takes the address of the group, the number of the run in
it, a row's 32 rounded activations q, their scale d, s = d times their sum, t = that sum (`products.sum_of`), and adds
to a running total.
"""

from __future__ import annotations

from numba import types

from llama_jax.kernels.native.halves import load_half
from llama_jax.kernels.native.lanes import (
    add_integers,
    field,
    fma,
    load_signed,
    load_unsigned,
    raised,
    splat,
    splat_integer,
    store,
    to_floats,
)
from llama_jax.kernels.native.machine import function, load_f32, load_i8, load_i32, stack, store_f32
from llama_jax.kernels.native.octets import (
    absolute,
    bits,
    dot4,
    dot8,
    dot16,
    either,
    load_bytes,
    load_four,
    plus_128,
    with_sign_of,
)
from llama_jax.kernels.native.vectors import ISA

ROWS, COLUMNS = 16, 32  # rows of a group, columns of a run
Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K = 288, 320, 352, 384, 544, 2304, 2816, 3360
f4, i4 = types.float32, types.int32
_lanes = stack(64)


@function
def known(size):
    """Whether there is a product for the type whose groups have this many bytes."""
    return size in (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K)


@function
def runs_of(size):
    """Runs of 32 columns of a block."""
    return 8 if size >= Q4_K else 1


@function
def bits_of(size):
    """Bits of a weight's code."""
    if size == Q8_0:
        return 8
    if size == Q6_K:
        return 6
    return 5 if size in (Q5_0, Q5_1, Q5_K) else 4


@function
def sum_of(t):
    """Sum of 32 rounded activations: the upper half of the number at t."""
    return load_i32(t) >> i4(16)


@function
def first_sum_of(t):
    """Sum of the first 16 of them: the lower half."""
    return i4(load_i32(t) << i4(16)) >> i4(16)  # Numba shifts in 64 bits


# Codes times activations, exact in int32 ------------------------------------------------------------------------------


@function
def nibbles(w, q, start):
    """start + dot products of 16 rows of 32 codes of 4 bits."""
    a, b, c, d = load_bytes(w), load_bytes(w + 64), load_bytes(w + 128), load_bytes(w + 192)
    start = dot16(start, bits(a, 0, 15), bits(b, 0, 15), bits(c, 0, 15), bits(d, 0, 15), q)
    return dot16(start, bits(a, 4, 15), bits(b, 4, 15), bits(c, 4, 15), bits(d, 4, 15), q + 16)


@function
def five(low, at, above, p):
    """Codes of 5 bits: four from bit `at` of `low` on, the fifth is bit p of `above`."""
    return either(bits(low, at, 15), bits(above, p - 4, 16))


@function
def fives(w, q, start):
    """start + dot products of 16 rows of 32 codes of 5 bits."""
    a, b, c, d, e = load_bytes(w), load_bytes(w + 64), load_bytes(w + 128), load_bytes(w + 192), load_bytes(w + 256)
    start = dot16(start, five(a, 0, e, 0), five(b, 0, e, 1), five(c, 0, e, 2), five(d, 0, e, 3), q)
    return dot16(start, five(a, 4, e, 4), five(b, 4, e, 5), five(c, 4, e, 6), five(d, 4, e, 7), q + 16)


@function
def six(low, at, above, v):
    """Codes of 6 bits: four from bit `at` of `low` on, two from bit 2 v of `above` on."""
    return either(bits(low, at, 15), bits(above, 2 * v - 4, 48))


@function
def sixes(w, at, above, q, start):
    """start + dot products of 16 rows of 16 codes of 6 bits, whose low bits begin at bit `at` of the bytes at w."""
    e = load_bytes(above)
    start = dot8(start, six(load_bytes(w), at, e, 0), six(load_bytes(w + 64), at, e, 1), q)
    return dot8(start, six(load_bytes(w + 128), at, e, 2), six(load_bytes(w + 192), at, e, 3), q + 8)


@function
def octets(w, q, total):
    """Dot products of 16 rows of 32 signed 8-bit weights; total: the sum of the activations."""
    if ISA == "avx2":  # whose product of bytes saturates: signs go to the activations
        lane_sums = splat_integer(i4(0))
        for v in range(8):
            packed = load_bytes(w + 64 * v)
            lane_sums = dot4(lane_sums, absolute(packed), with_sign_of(load_four(q + 4 * v), packed))
        return lane_sums
    lane_sums = splat_integer(i4(-128) * total)
    for v in range(8):
        lane_sums = dot4(lane_sums, plus_128(load_bytes(w + 64 * v)), load_four(q + 4 * v))
    return lane_sums


# With their scales ----------------------------------------------------------------------------------------------------


@function
def run_q4_0(w, j, q, d, s, t, total):
    dots = to_floats(nibbles(w, q, splat_integer(i4(-8) * sum_of(t))))
    return fma(dots, load_half(w + 256) * splat(load_f32(d)), total)


@function
def run_q4_1(w, j, q, d, s, t, total):
    dots = to_floats(nibbles(w, q, splat_integer(i4(0))))
    total = fma(dots, load_half(w + 256) * splat(load_f32(d)), total)
    return fma(load_half(w + 288), splat(load_f32(s)), total)


@function
def run_q5_0(w, j, q, d, s, t, total):
    dots = to_floats(fives(w, q, splat_integer(i4(-16) * sum_of(t))))
    return fma(dots, load_half(w + 320) * splat(load_f32(d)), total)


@function
def run_q5_1(w, j, q, d, s, t, total):
    dots = to_floats(fives(w, q, splat_integer(i4(0))))
    total = fma(dots, load_half(w + 320) * splat(load_f32(d)), total)
    return fma(load_half(w + 352), splat(load_f32(s)), total)


@function
def run_q8_0(w, j, q, d, s, t, total):
    dots = to_floats(octets(w, q, sum_of(t)))
    return fma(dots, load_half(w + 512) * splat(load_f32(d)), total)


@function
def two_scales(codes, halves, j):
    """d sc and dmin m of a run of q4_k or q5_k, each exact."""
    low, above = load_unsigned(codes + 16 * j), load_unsigned(codes + 128 + 16 * (j // 2))
    at = types.int32(4 * (j % 2))
    scale = add_integers(field(low, 0, 15), raised(field(above, at, 3), 4))
    minimum = add_integers(field(low, 4, 15), raised(field(above, at + 2, 3), 4))
    return load_half(halves) * to_floats(scale), load_half(halves + 32) * to_floats(minimum)


@function
def run_q4_k(w, j, q, d, s, t, total):
    scale, minimum = two_scales(w + 2048, w + 2240, j)
    dots = to_floats(nibbles(w + 256 * j, q, splat_integer(i4(0))))
    return fma(dots, scale * splat(load_f32(d)), fma(minimum, splat(-load_f32(s)), total))


@function
def run_q5_k(w, j, q, d, s, t, total):
    scale, minimum = two_scales(w + 2560, w + 2752, j)
    dots = to_floats(fives(w + 320 * j, q, splat_integer(i4(0))))
    return fma(dots, scale * splat(load_f32(d)), fma(minimum, splat(-load_f32(s)), total))


@function
def run_q6_k(w, j, q, d, s, t, total):
    at, first = w + 384 * j, first_sum_of(t)
    left = to_floats(sixes(at, 0, at + 256, q, splat_integer(i4(-32) * first)))
    right = to_floats(sixes(at, 4, at + 320, q + 16, splat_integer(i4(-32) * (sum_of(t) - first))))
    block, codes = load_half(w + 3328), w + 3072 + 32 * j
    dots = fma(left, block * to_floats(load_signed(codes)), right * (block * to_floats(load_signed(codes + 16))))
    return fma(dots, splat(load_f32(d)), total)


RUNS = {
    Q4_0: run_q4_0, Q4_1: run_q4_1, Q5_0: run_q5_0, Q5_1: run_q5_1,
    Q8_0: run_q8_0, Q4_K: run_q4_k, Q5_K: run_q5_k, Q6_K: run_q6_k,
}  # fmt: skip


# Single weights -------------------------------------------------------------------------------------------------------


@function
def byte(address):
    return types.int32(load_i8(address)) & 255


@function
def half(address, lane):
    """One of 16 half floats."""
    lanes = _lanes()
    store(lanes, load_half(address))
    return load_f32(lanes + 4 * lane)


@function
def code(w, many, lane, column):
    """The code of `many` bits of a weight: a row's of a run of 32 columns at w."""
    v, within = column % ROWS // 4, 4 * lane + column % 4
    both = byte(w + 64 * v + within)
    low = both & 15 if column < ROWS else both >> 4
    if many == 5:
        return low | (byte(w + 256 + within) >> (column // 4) & 1) << 4
    if many == 6:
        return low | (byte(w + 256 + 64 * (column // ROWS) + within) >> (2 * v) & 3) << 4
    return low


@function
def expand_run(w, size, j, lane, to):
    """The weights of one row of a run as float32, 32 numbers, bit for bit those of `llama_jax.block_types.expand`."""
    many = bits_of(size)
    at, end = w + 64 * many * j, w + 64 * many * runs_of(size)
    scale, offset, zero = f4(0), f4(0), 16 if size == Q5_0 else 8 if size == Q4_0 else 32 if size == Q6_K else 0
    if size in (Q4_K, Q5_K):
        low, above = byte(end + 16 * j + lane), byte(end + 128 + 16 * (j // 2) + lane) >> (4 * (j % 2))
        scale = half(end + 192, lane) * f4(low & 15 | (above & 3) << 4)
        offset = half(end + 224, lane) * f4(low >> 4 | (above >> 2 & 3) << 4)
    elif size != Q6_K:
        scale = half(end, lane)
        offset = half(end + 32, lane) if size in (Q4_1, Q5_1) else f4(0)
    for column in range(COLUMNS):
        if size == Q6_K:
            scale = half(end + 256, lane) * f4(load_i8(end + 32 * j + column // ROWS * ROWS + lane))
        if size == Q8_0:
            value = scale * f4(load_i8(at + 64 * (column // 4) + 4 * lane + column % 4))
        else:
            value = scale * f4(code(at, many, lane, column) - zero)
        if size in (Q4_K, Q5_K):
            value = value - offset
        elif size in (Q4_1, Q5_1):
            value = value + offset
        store_f32(to + 4 * column, value)
