"""Products with quantised blocks of 16 rows (`llama_jax.quantise.Blocks`).

Activations are rounded to int8 per run of 32 columns, as llama.cpp does, but with float32 scales; products of bytes are
summed exactly in int32 within a run, and runs in float32, in order: a row's result does not depend on what other rows
there are. Activations of M rows of n = K/32 runs are q int8, d float32 scale, s float32 scale times sum, t two int16:
the sum of the first 16, then that of all.

Rows go through a product in tiles of 8, then of 4, 2 and 1 (`tile_of`), for which a weight is unpacked once. A tile of
m rows that begins with row r has its q at 32 n r, [n, m, 32], and its d, s, t at 4 n r, [n, m].
"""

from __future__ import annotations

from numba import types

from llama_jax.kernels.native.block_types import (
    COLUMNS,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    ROWS,
    RUNS,
)
from llama_jax.kernels.native.lanes import (
    count,
    float_of_bits,
    larger_integer,
    largest_integer,
    load,
    magnitude,
    nearest,
    splat,
    store,
    to_integers,
)
from llama_jax.kernels.native.machine import function, load_f32, stack, store_f32, store_i32
from llama_jax.kernels.native.octets import prefetch, store_bytes

TILE = 8  # rows of activations at most that meet a weight at once
# bytes that weights are asked for before they are used: a row computes little, so its loads run ahead by themselves
AHEAD, AHEAD_OF_ROWS = 2048, 4096
f4, i4 = types.float32, types.int32
FAINT = 1e-30  # what is all below this is rounded to zeros: 127 / max would overflow (`quantise.FAINT`)
_lanes = stack(64)


@function
def quantise(x, blocks, m, q, d, s, t):
    """Round `blocks` times 32 floats at x into a tile of m rows, beginning at q, d, s and t. A block with a NaN has NaN
    for its scale, and so has all that it is multiplied by."""
    for b in range(blocks):
        first, second = load(x + 128 * b), load(x + 128 * b + 64)
        top = float_of_bits(largest_integer(larger_integer(magnitude(first), magnitude(second))))
        scale = top / f4(127)
        inverse = splat(f4(127) / top if top >= FAINT else f4(0))
        left, right = to_integers(nearest(first * inverse)), to_integers(nearest(second * inverse))
        store_bytes(q + 32 * m * b, left)
        store_bytes(q + 32 * m * b + 16, right)
        half = count(left)
        whole = half + count(right)
        store_f32(d + 4 * m * b, scale)
        store_f32(s + 4 * m * b, scale * f4(whole))
        store_i32(t + 4 * m * b, whole << i4(16) | half & i4(0xFFFF))


@function
def tile_of(rows):
    """Rows of the next tile if this many are left."""
    return TILE if rows >= TILE else 4 if rows >= 4 else 2 if rows >= 2 else 1


@function
def activation_bytes(rows, blocks):
    """Bytes for this many rows of rounded activations."""
    return rows * blocks * (COLUMNS + 12)


@function
def activations(at, rows, blocks):
    """Where q, d, s and t of rounded activations stand in that room."""
    d = at + COLUMNS * rows * blocks
    return at, d, d + 4 * rows * blocks, d + 8 * rows * blocks


@function
def round_blocks(x, many, first, blocks, at, rows, row):
    """Round `many` times 32 floats at x: from the `first` block on of one of the rows of activations at `at`."""
    start = 0
    while row >= start + tile_of(rows - start):
        start += tile_of(rows - start)
    m = tile_of(rows - start)
    q, d, s, t = activations(at, rows, blocks)
    place = blocks * start + m * first + row - start
    quantise(x, many, m, q + COLUMNS * place, d + 4 * place, s + 4 * place, t + 4 * place)


def tile_for(m, size, run):
    ahead, power = AHEAD if m == 1 else AHEAD_OF_ROWS, 3 if size >= Q4_K else 0  # 2^power runs a block
    each = size >> power

    @function
    def tile(w, blocks, q, d, s, t, base, base_stride, to, stride, kept):
        """A group of 16 rows times a tile of m rows of activations; the weights are unpacked once for all. See
        `multiply`."""
        a = b = c = e = f = g = h = i = splat(f4(0))
        for k in range(blocks):
            at, j, x, n = w + size * (k >> power), k & (1 << power) - 1, q + COLUMNS * m * k, 4 * m * k
            for line in range(0, each, 64):
                prefetch(w + each * k + ahead + line)
            a = run(at, j, x, d + n, s + n, t + n, a)
            if m > 1:
                b = run(at, j, x + 32, d + n + 4, s + n + 4, t + n + 4, b)
            if m > 2:
                c = run(at, j, x + 64, d + n + 8, s + n + 8, t + n + 8, c)
                e = run(at, j, x + 96, d + n + 12, s + n + 12, t + n + 12, e)
            if m > 4:
                f = run(at, j, x + 128, d + n + 16, s + n + 16, t + n + 16, f)
                g = run(at, j, x + 160, d + n + 20, s + n + 20, t + n + 20, g)
                h = run(at, j, x + 192, d + n + 24, s + n + 24, t + n + 24, h)
                i = run(at, j, x + 224, d + n + 28, s + n + 28, t + n + 28, i)
        finish(a, base, to, kept)
        if m > 1:
            finish(b, base + base_stride, to + stride, kept)
        if m > 2:
            finish(c, base + 2 * base_stride, to + 2 * stride, kept)
            finish(e, base + 3 * base_stride, to + 3 * stride, kept)
        if m > 4:
            finish(f, base + 4 * base_stride, to + 4 * stride, kept)
            finish(g, base + 5 * base_stride, to + 5 * stride, kept)
            finish(h, base + 6 * base_stride, to + 6 * stride, kept)
            finish(i, base + 7 * base_stride, to + 7 * stride, kept)

    return tile


@function
def finish(sums, base, to, kept):
    store_some(to, sums + load(base) if base != 0 else sums, kept)


def tiles_for(size):
    one, two, four, eight = (tile_for(m, size, RUNS[size]) for m in (1, 2, 4, 8))

    @function
    def tiles(m, w, blocks, q, d, s, t, base, base_stride, to, stride, kept):
        if m == 1:
            one(w, blocks, q, d, s, t, base, base_stride, to, stride, kept)
        elif m == 2:
            two(w, blocks, q, d, s, t, base, base_stride, to, stride, kept)
        elif m == 4:
            four(w, blocks, q, d, s, t, base, base_stride, to, stride, kept)
        else:
            eight(w, blocks, q, d, s, t, base, base_stride, to, stride, kept)

    return tiles


tiles_q4_0, tiles_q4_1, tiles_q5_0, tiles_q5_1 = (tiles_for(size) for size in (Q4_0, Q4_1, Q5_0, Q5_1))
tiles_q8_0, tiles_q4_k, tiles_q5_k, tiles_q6_k = (tiles_for(size) for size in (Q8_0, Q4_K, Q5_K, Q6_K))


@function
def multiply(w, size, blocks, at, rows, base, base_stride, to, stride, kept):
    """A group of 16 rows, `blocks` runs of 32 columns of the type whose groups have `size` bytes, from w on, times the
    rows of activations at `at`.

    Row r's 16 results, or the first `kept` of them, go to `to` + r `stride`, added to what stands at `base` + r
    `base_stride` where `base` is not 0; both are 0 else.
    """
    q, d, s, t = activations(at, rows, blocks)
    row = 0
    while row < rows:
        m, place = tile_of(rows - row), blocks * row
        x, dd, ss, tt = q + COLUMNS * place, d + 4 * place, s + 4 * place, t + 4 * place
        add = base + base_stride * row if base != 0 else 0
        out = to + stride * row
        if size == Q4_K:
            tiles_q4_k(m, w, blocks, x, dd, ss, tt, add, base_stride, out, stride, kept)
        elif size == Q6_K:
            tiles_q6_k(m, w, blocks, x, dd, ss, tt, add, base_stride, out, stride, kept)
        elif size == Q5_0:
            tiles_q5_0(m, w, blocks, x, dd, ss, tt, add, base_stride, out, stride, kept)
        elif size == Q4_1:
            tiles_q4_1(m, w, blocks, x, dd, ss, tt, add, base_stride, out, stride, kept)
        elif size == Q8_0:
            tiles_q8_0(m, w, blocks, x, dd, ss, tt, add, base_stride, out, stride, kept)
        elif size == Q4_0:
            tiles_q4_0(m, w, blocks, x, dd, ss, tt, add, base_stride, out, stride, kept)
        elif size == Q5_K:
            tiles_q5_k(m, w, blocks, x, dd, ss, tt, add, base_stride, out, stride, kept)
        else:
            tiles_q5_1(m, w, blocks, x, dd, ss, tt, add, base_stride, out, stride, kept)
        row += m


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
