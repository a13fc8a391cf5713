"""Grouped-query attention of new tokens over cached keys and values, in pieces of `CHUNK` positions that any thread may
do.

Cache of one layer and key head: keys float16 [S/16, h, 16], 16 positions side by side so that a position is a lane of
the scores; values float16 [S, h]. A piece gives for each of its query heads the largest score, the sum of exponentials
and the weighted sum of values, which `merged` joins (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867).
"""

from __future__ import annotations

from numba import types

from llama_jax.kernels.native.halves import store_half
from llama_jax.kernels.native.lanes import exponential, fma, larger, largest, load, splat, store, total
from llama_jax.kernels.native.lanes import first as first_lane
from llama_jax.kernels.native.machine import copy_i16, function, load_f32, stack, store_f32
from llama_jax.kernels.native.octets import prefetch
from llama_jax.kernels.native.sums import sums
from llama_jax.kernels.native.vectors import ISA, MORE

CHUNK, LANES, HEADS = 128, 16, 4  # positions a piece, positions a tile of keys, query heads done at once
TILES, COLUMNS = (2, 4) if ISA == "avx512vnni" else (1, 1)  # tiles, vectors of values that 32 registers have room for
HEADER = 16  # floats before a piece's weighted sum: largest score, sum of exponentials, unused
NEVER = -1e30  # score of a position that may not be seen: its exponential is 0, and 0 times NEVER is no NaN
f4 = types.float32
_scores, _half = stack(4 * CHUNK * HEADS), stack(64)


@function
def rotated(x, to, cos, sin, head_dim, scale):
    """Rotate one head, element j with j + h/2 (rope.py), and scale it."""
    half = head_dim // 2
    if half % LANES == 0:
        many = splat(scale)
        for j in range(0, 4 * half, 4 * LANES):
            a, b, c, s = load(x + j), load(x + j + 4 * half), load(cos + j), load(sin + j)
            store(to + j, (a * c - b * s) * many)
            store(to + j + 4 * half, (b * c + a * s) * many)
        return
    for j in range(half):
        a, b, c, s = load_f32(x + 4 * j), load_f32(x + 4 * (j + half)), load_f32(cos + 4 * j), load_f32(sin + 4 * j)
        store_f32(to + 4 * j, (a * c - b * s) * scale)
        store_f32(to + 4 * (j + half), (b * c + a * s) * scale)


@function
def remember(key, value, keys, values, position, head_dim):
    """Write a rotated key and a value (float32 [h]) into the cache of their head."""
    half = _half()
    at = keys + (position // LANES) * 2 * LANES * head_dim + 2 * (position % LANES)
    for i in range(0, head_dim, LANES):
        store_half(half, load(key + 4 * i))
        for j in range(LANES):
            copy_i16(at + 2 * LANES * (i + j), half + 2 * j)
        store_half(values + 2 * (position * head_dim + i), load(value + 4 * i))


def scores_for(n, tiles):
    zeros, add, write = sums(n, tiles)

    @function
    def scores(q, head_dim, keys, values, to):
        """Scores of `tiles` times 16 positions for n query heads, float32 [n, CHUNK] at `to`. Memory is asked for their
        values, which are needed next, and for the keys behind."""
        step, totals = 2 * LANES * head_dim, zeros()
        for i in range(head_dim):
            totals = add(totals, keys + 2 * LANES * i, step, q + 4 * i, 4 * head_dim)
            for tile in range(tiles):
                at = 2 * LANES * i + step * tile
                prefetch(values + at)
                prefetch(keys + step * tiles + at)
        write(totals, to, 4 * CHUNK, 4 * LANES)

    return scores


def mix_for(n, columns):
    zeros, add, write = sums(n, columns)

    @function
    def mix(weights, values, places, head_dim, to, to_stride):
        """Sum over a chunk's first places of weight times 16 `columns` of the values, for n query heads; weights
        float32 [n, CHUNK]."""
        totals = zeros()
        for t in range(places):
            totals = add(totals, values + 2 * head_dim * t, 2 * LANES, weights + 4 * t, 4 * CHUNK)
        write(totals, to + 4 * HEADER, to_stride, 4 * LANES)

    return mix


def choice(functions):
    """One function of four: which takes first how many query heads there are."""
    one, two, three, four = functions

    @function
    def chosen(n, *arguments):
        if n == 1:
            one(*arguments)
        elif n == 2:
            two(*arguments)
        elif n == 3:
            three(*arguments)
        else:
            four(*arguments)

    return chosen


scores_1, scores_2 = (choice([scores_for(n, tiles) for n in (1, 2, 3, 4)]) for tiles in (1, 2))
mix_1, mix_wide = (choice([mix_for(n, columns) for n in (1, 2, 3, 4)]) for columns in (1, COLUMNS))


@function
def all_scores(n, q, head_dim, keys, values, tiles, to):
    """Scores of n query heads at so many tiles of keys, two at once where registers allow."""
    tile, step = 0, 2 * LANES * head_dim
    while tile < tiles:
        if tile + TILES <= tiles and TILES == 2:
            scores_2(n, q, head_dim, keys + step * tile, values + step * tile, to + 4 * LANES * tile)
            tile += 2
        else:
            scores_1(n, q, head_dim, keys + step * tile, values + step * tile, to + 4 * LANES * tile)
            tile += 1


@function
def mix(n, weights, values, places, head_dim, to, to_stride):
    """Sum over a chunk's first places of weight times value, as many columns at once as registers allow."""
    column = 0
    while column < head_dim:
        at, out = values + 2 * column, to + 4 * column
        if column + LANES * COLUMNS <= head_dim:
            mix_wide(n, weights, at, places, head_dim, out, to_stride)
            column += LANES * COLUMNS
        else:
            mix_1(n, weights, at, places, head_dim, out, to_stride)
            column += LANES


@function
def softmax_of(row, places, to):
    """Exponentials of `places` scores less the largest, in place; that and their sum go to `to`."""
    top = splat(f4(NEVER))
    for i in range(0, places, LANES):
        top = larger(top, load(row + 4 * i))
    best = largest(top)
    whole, against = splat(f4(0)), splat(best)
    for i in range(0, places, LANES):
        weight = exponential(load(row + 4 * i) - against)
        store(row + 4 * i, weight)
        whole = whole + weight
    store_f32(to, best)
    store_f32(to + 4, total(whole))


@function
def attend(q, queries, heads, position, keys, values, start, last, head_dim, to, to_stride, window):
    """A piece: rotated and scaled queries (float32 [queries, h]) over positions start…last of one chunk, its first.

    There are `heads` queries of each of the positions `position`, `position` + 1 …, and each sees what is not behind
    its own, of that the last `window` where this is not 0: a query gets the same bits whichever others there are, as
    long as all values are finite (what it may not see it takes 0 times).
    Query i's result goes to `to` + i `to_stride`: largest score, sum, then at HEADER the weighted sum of values [h].
    """
    row, far = _scores(), 2 * head_dim * start
    done = 0
    while done < queries:
        n, at = min(queries - done, HEADS), to + done * to_stride
        end = min(last, position + (done + n - 1) // heads)
        tiles = (end - start) // LANES + 1
        all_scores(n, q + 4 * head_dim * done, head_dim, keys + far, values + far, tiles, row)
        for i in range(n):
            mine, seen = row + 4 * CHUNK * i, min(end, position + (done + i) // heads) - start + 1
            for place in range(seen, LANES * tiles):
                store_f32(mine + 4 * place, f4(NEVER))
            unseen = types.int64(0)
            if MORE:
                unseen = position + (done + i) // heads + 1 - window - start if window > 0 else types.int64(0)
            for place in range(unseen):
                store_f32(mine + 4 * place, f4(NEVER))
            softmax_of(mine, LANES * tiles, at + i * to_stride)
            for place in range(seen, end - start + 1):  # an exponential is never quite 0
                store_f32(mine + 4 * place, f4(0))
            for place in range(unseen):
                store_f32(mine + 4 * place, f4(0))
        mix(n, row, values + far, end - start + 1, head_dim, at, to_stride)
        done += n


@function
def merged(pieces, count, stride, head_dim, weights, to):
    """Join a head's pieces, `stride` bytes apart, to softmax-weighted values float32 [h]. weights: room for `count`
    floats."""
    best = load_f32(pieces)
    for i in range(1, count):
        best = max(best, load_f32(pieces + i * stride))
    whole = f4(0)
    for i in range(count):
        at = pieces + i * stride
        weight = first_lane(exponential(splat(load_f32(at) - best)))
        store_f32(weights + 4 * i, weight)
        whole += load_f32(at + 4) * weight
    share = splat(f4(1) / whole)
    for j in range(0, head_dim, LANES):
        mixed = splat(f4(0))
        for i in range(count):
            mixed = fma(load(pieces + i * stride + 4 * (HEADER + j)), splat(load_f32(weights + 4 * i)), mixed)
        store(to + 4 * j, mixed * share)
