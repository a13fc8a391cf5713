"""Products with quantised blocks of 16 rows × 32 columns (`llama_jax.model.quantise.Blocks`).

Activations are rounded to int8 per 32 columns, as llama.cpp does, but with float32 scales; products of bytes are summed
exactly in int32 within a block, and blocks in float32, in order. Activations of a row of K columns, n = K/32 blocks:
q int8 [K], d float32 [n] scale, s float32 [n] scale times sum, t int32 [n] sum.
"""

from __future__ import annotations

from numba import types

from llama_jax.kernels.native.lanes import (
    ISA,
    absolute,
    count,
    dot4,
    float_of_bits,
    fma,
    high,
    larger_integer,
    largest_integer,
    load,
    load_bytes,
    load_four,
    load_half,
    low,
    magnitude,
    nearest,
    plus_128,
    prefetch,
    splat,
    splat_integer,
    store,
    store_bytes,
    to_floats,
    to_integers,
    with_sign_of,
)
from llama_jax.kernels.native.machine import function, load_f32, load_i32, stack, store_f32, store_i32

ROWS, COLUMNS = 16, 32  # sizes of a block
Q4_0, Q4_1, Q8_0 = 288, 320, 544  # bytes of a block, by which kinds are told apart
AHEAD = 2048  # bytes that weights are asked for before they are used
f4, i4 = types.float32, types.int32
FAINT = 1e-30  # what is all below this is rounded to zeros: 127 / max would overflow (`quantise.FAINT`)
_lanes = stack(64)


@function
def quantise(x, blocks, q, d, s, t):
    """Round `blocks` times 32 floats at x. A block with a NaN has NaN for its scale, and so has all that it is
    multiplied by."""
    for b in range(blocks):
        first, second = load(x + 128 * b), load(x + 128 * b + 64)
        top = float_of_bits(largest_integer(larger_integer(magnitude(first), magnitude(second))))
        scale = top / f4(127)
        inverse = splat(f4(127) / top if top >= FAINT else f4(0))
        left, right = to_integers(nearest(first * inverse)), to_integers(nearest(second * inverse))
        store_bytes(q + 32 * b, left)
        store_bytes(q + 32 * b + 16, right)
        whole = count(left + right)
        store_f32(d + 4 * b, scale)
        store_f32(s + 4 * b, scale * f4(whole))
        store_i32(t + 4 * b, whole)


@function
def nibbles(w, q, start):
    """start + dot products of 16 rows of 32 unsigned 4-bit weights."""
    for v in range(4):
        packed = load_bytes(w + 64 * v)
        start = dot4(start, low(packed), load_four(q + 4 * v))
        start = dot4(start, high(packed), load_four(q + 16 + 4 * v))
    return start


@function
def octets(w, q, total):
    """Dot products of 16 rows of 32 signed 8-bit weights; total: the sum of the activations."""
    if ISA == "avx2":  # whose product of bytes saturates: signs go to the activations
        found = splat_integer(i4(0))
        for v in range(8):
            packed = load_bytes(w + 64 * v)
            found = dot4(found, absolute(packed), with_sign_of(load_four(q + 4 * v), packed))
        return found
    found = splat_integer(i4(-128) * total)
    for v in range(8):
        found = dot4(found, plus_128(load_bytes(w + 64 * v)), load_four(q + 4 * v))
    return found


@function
def block_q4_0(w, q, d, s, t, total):
    dots = to_floats(nibbles(w, q, splat_integer(i4(-8) * load_i32(t))))
    return fma(dots, load_half(w + 256) * splat(load_f32(d)), total)


@function
def block_q4_1(w, q, d, s, t, total):
    dots = to_floats(nibbles(w, q, splat_integer(i4(0))))
    total = fma(load_half(w + 288), splat(load_f32(s)), total)
    return fma(dots, load_half(w + 256) * splat(load_f32(d)), total)


@function
def block_q8_0(w, q, d, s, t, total):
    dots = to_floats(octets(w, q, load_i32(t)))
    return fma(dots, load_half(w + 512) * splat(load_f32(d)), total)


def one_row(size, block):
    @function
    def product(w, blocks, q, d, s, t):
        """A group of 16 rows times one row of activations."""
        total = splat(f4(0))
        for b in range(blocks):
            at = w + size * b
            for line in range(0, size, 64):
                prefetch(at + AHEAD + line)
            total = block(at, q + 32 * b, d + 4 * b, s + 4 * b, t + 4 * b, total)
        return total

    return product


def four_rows(size, block):
    @function
    def product(w, blocks, q, d, s, t):
        """A group of 16 rows times four rows of activations, one behind the other: weights are unpacked once for
        all."""
        a, b, c, e = splat(f4(0)), splat(f4(0)), splat(f4(0)), splat(f4(0))
        wide, row = 32 * blocks, 4 * blocks
        for i in range(blocks):
            at, x, n = w + size * i, q + 32 * i, 4 * i
            a = block(at, x, d + n, s + n, t + n, a)
            b = block(at, x + wide, d + n + row, s + n + row, t + n + row, b)
            c = block(at, x + 2 * wide, d + n + 2 * row, s + n + 2 * row, t + n + 2 * row, c)
            e = block(at, x + 3 * wide, d + n + 3 * row, s + n + 3 * row, t + n + 3 * row, e)
        return a, b, c, e

    return product


one_q4_0, one_q4_1, one_q8_0 = (one_row(*k) for k in ((Q4_0, block_q4_0), (Q4_1, block_q4_1), (Q8_0, block_q8_0)))
four_q4_0, four_q4_1, four_q8_0 = (four_rows(*k) for k in ((Q4_0, block_q4_0), (Q4_1, block_q4_1), (Q8_0, block_q8_0)))


@function
def group(w, size, blocks, q, d, s, t):
    """16 rows, `blocks` blocks of `size` bytes from w on, times one row of activations."""
    if size == Q4_1:
        return one_q4_1(w, blocks, q, d, s, t)
    if size == Q4_0:
        return one_q4_0(w, blocks, q, d, s, t)
    return one_q8_0(w, blocks, q, d, s, t)


@function
def four(w, size, blocks, q, d, s, t):
    if size == Q4_1:
        return four_q4_1(w, blocks, q, d, s, t)
    if size == Q4_0:
        return four_q4_0(w, blocks, q, d, s, t)
    return four_q8_0(w, blocks, q, d, s, t)


@function
def known(size):
    """Whether blocks of so many bytes are of a kind that there is a product for."""
    return size in (Q4_0, Q4_1, Q8_0)


@function
def holds(size, place, groups, blocks, kind):
    """Whether an array of so many bytes has a weight at `place`; no product of sizes may overflow on the way."""
    room = size - place
    return 0 <= place < size and 1 <= blocks <= room and groups <= room // (blocks * kind)


@function
def store_some(address, value, n):
    """The first n of 16 floats, n >= 1."""
    if n >= ROWS:
        store(address, value)
        return
    lanes = _lanes()
    store(lanes, value)
    for i in range(n):
        store_f32(address + 4 * i, load_f32(lanes + 4 * i))
