"""One token's grouped-query attention over cached keys and values, in pieces of `CHUNK` positions that any thread may
do.

Cache of one layer and key head: keys float16 [S/16, h, 16], 16 positions side by side so that a position is a lane of
the scores; values float16 [S, h]. A piece gives for each of its query heads the largest score, the sum of exponentials
and the weighted sum of values, which `merged` joins (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867).
"""

from __future__ import annotations

from numba import types

from llama_jax.kernels.native.lanes import (
    exponential,
    fma,
    larger,
    largest,
    load,
    load_half,
    splat,
    store,
    store_half,
    total,
)
from llama_jax.kernels.native.lanes import first as first_lane
from llama_jax.kernels.native.machine import copy_i16, function, load_f32, stack, store_f32

CHUNK, LANES, HEADS = 128, 16, 4  # positions a piece, positions a tile of keys, query heads done at once
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


def scores_for(n):
    @function
    def scores(q, head_dim, keys, to):
        """Scores of 16 positions for n query heads, float32 [n, CHUNK] at `to`."""
        stride = 4 * head_dim
        a, b, c, d = splat(f4(0)), splat(f4(0)), splat(f4(0)), splat(f4(0))
        for i in range(head_dim):
            key, at = load_half(keys + 2 * LANES * i), q + 4 * i
            a = fma(key, splat(load_f32(at)), a)
            if n > 1:
                b = fma(key, splat(load_f32(at + stride)), b)
            if n > 2:
                c = fma(key, splat(load_f32(at + 2 * stride)), c)
            if n > 3:
                d = fma(key, splat(load_f32(at + 3 * stride)), d)
        store(to, a)
        if n > 1:
            store(to + 4 * CHUNK, b)
        if n > 2:
            store(to + 8 * CHUNK, c)
        if n > 3:
            store(to + 12 * CHUNK, d)

    return scores


def mix_for(n):
    @function
    def mix(weights, values, first, last, head_dim, to, to_stride):
        """Sum over positions first…last of weight times value for n query heads; weights float32 [n, CHUNK], by place
        in the chunk."""
        row = 2 * head_dim
        for i in range(0, head_dim, LANES):
            a, b, c, d = splat(f4(0)), splat(f4(0)), splat(f4(0)), splat(f4(0))
            for t in range(first, last + 1):
                value, at = load_half(values + row * t + 2 * i), weights + 4 * (t % CHUNK)
                a = fma(value, splat(load_f32(at)), a)
                if n > 1:
                    b = fma(value, splat(load_f32(at + 4 * CHUNK)), b)
                if n > 2:
                    c = fma(value, splat(load_f32(at + 8 * CHUNK)), c)
                if n > 3:
                    d = fma(value, splat(load_f32(at + 12 * CHUNK)), d)
            out = to + 4 * (HEADER + i)
            store(out, a)
            if n > 1:
                store(out + to_stride, b)
            if n > 2:
                store(out + 2 * to_stride, c)
            if n > 3:
                store(out + 3 * to_stride, d)

    return mix


scores_1, scores_2, scores_3, scores_4 = (scores_for(n) for n in (1, 2, 3, 4))
mix_1, mix_2, mix_3, mix_4 = (mix_for(n) for n in (1, 2, 3, 4))


@function
def scores(n, q, head_dim, keys, to):
    if n == 1:
        scores_1(q, head_dim, keys, to)
    elif n == 2:
        scores_2(q, head_dim, keys, to)
    elif n == 3:
        scores_3(q, head_dim, keys, to)
    else:
        scores_4(q, head_dim, keys, to)


@function
def mix(n, weights, values, first, last, head_dim, to, to_stride):
    if n == 1:
        mix_1(weights, values, first, last, head_dim, to, to_stride)
    elif n == 2:
        mix_2(weights, values, first, last, head_dim, to, to_stride)
    elif n == 3:
        mix_3(weights, values, first, last, head_dim, to, to_stride)
    else:
        mix_4(weights, values, first, last, head_dim, to, to_stride)


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
def attend(q, heads, keys, values, first, last, head_dim, to, to_stride):
    """A piece: `heads` rotated and scaled query heads (float32 [heads, h]) over positions first…last, all of one chunk.

    Head i's result goes to `to` + i `to_stride`: largest score, sum, then at HEADER the weighted sum of values [h].
    """
    row = _scores()
    start = first // CHUNK * CHUNK
    tiles = (last - start) // LANES + 1
    done = 0
    while done < heads:
        n, at = min(heads - done, HEADS), to + done * to_stride
        for tile in range((first - start) // LANES, tiles):
            here = keys + (start // LANES + tile) * 2 * LANES * head_dim
            scores(n, q + 4 * head_dim * done, head_dim, here, row + 4 * LANES * tile)
        for i in range(n):
            mine = row + 4 * CHUNK * i
            for place in range(first - start):
                store_f32(mine + 4 * place, f4(NEVER))
            for place in range(last - start + 1, LANES * tiles):
                store_f32(mine + 4 * place, f4(NEVER))
            softmax_of(mine, LANES * tiles, at + i * to_stride)
        mix(n, row, values, first, last, head_dim, at, to_stride)
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
