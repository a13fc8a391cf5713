"""Features beyond Llama and Qwen2: norms of heads, ropes and windows of layers, norms of what is added, GELU. Only code
of `vectors.MORE` uses it."""

from __future__ import annotations

from numba import types

from llama_jax.kernels.native import layout, team
from llama_jax.kernels.native.attention import CHUNK, rotated
from llama_jax.kernels.native.ffi import argument, data, integer, number, size
from llama_jax.kernels.native.lanes import exponential, load, splat, store
from llama_jax.kernels.native.layout import p, rows_of
from llama_jax.kernels.native.machine import function, load_f32, store_f32
from llama_jax.kernels.native.more import (
    HEAD_NORMS,
    O_BIASES,
    SCALE,
    SCALE_EMBEDDING,
    TANH,
    rope_of,
    window_of,
)
from llama_jax.kernels.native.operands import COS, sequences_of, tokens_of
from llama_jax.kernels.native.rows import normalised

f4 = types.float32
QUERIES, KEYS = range(2)  # the norms of heads


@function
def scale_embedding(state, x):
    """The rows of the embedding at x, times its scale."""
    many = splat(number(p(state, layout.FRAME), SCALE_EMBEDDING))
    for i in range(0, 4 * p(state, layout.D) * rows_of(state), 64):
        store(x + i, load(x + i) * many)


@function
def score_scale(state):
    return number(p(state, layout.FRAME), SCALE)


@function
def turned(state, layer, which, row, x, to, scale):
    """A head at x of a row, normalised where heads are, its first numbers rotated by the row's position."""
    frame, dim = p(state, layout.FRAME), p(state, layout.DIM)
    norms, cosines = argument(frame, HEAD_NORMS), argument(frame, COS)
    if size(norms, 0) > 0:
        normalised(x, data(norms) + 4 * dim * (2 * layer + which), dim, layout.eps_of(state), to)
        x = to
    half, given = size(cosines, 2), sequences_of(frame) * tokens_of(frame)  # rows, padding's among them
    at = 4 * half * (given * rope_of(frame, layer) + row)
    rotated(x, to, p(state, layout.COS_AT) + at, p(state, layout.SIN_AT) + at, 2 * half, scale)
    for i in range(8 * half, 4 * dim, 4):
        store_f32(to + i, load_f32(x + i) * scale)


@function
def window(state, layer):
    return window_of(p(state, layout.FRAME), layer)


@function
def first_seen(state, layer, position):
    """The first position that a row at this one sees."""
    many = window(state, layer)
    return max(position + 1 - many, 0) if many > 0 else types.int64(0)


@function
def rows_that_see(state, layer, position, start):
    """How many tokens of a sequence, the first at `position`, there are before the first that sees nothing of the piece
    that begins at `start`."""
    many, tokens = window(state, layer), p(state, layout.TOKENS)
    return min(tokens, max(start + CHUNK - 1 + many - position, 0)) if many > 0 else tokens


@function
def activated(state, x):
    """SiLU or GELU: x / (1 + e^-z), z = x, or twice what the tanh formula takes the tangent of."""
    z = x
    if integer(p(state, layout.FRAME), TANH) == 1:
        z = x * (splat(f4(1.5957691216)) + splat(f4(0.0713548163)) * (x * x))
    return x / (splat(f4(1)) + exponential(splat(f4(0)) - z))


@function
def o_bias(state, layer):
    """Address of the bias of a layer's attention; 0 if there is none."""
    biases = argument(p(state, layout.FRAME), O_BIASES)
    return data(biases) + 4 * p(state, layout.D) * layer if size(biases, 0) > 0 else types.int64(0)


@function
def has_post_norms(state):
    return size(argument(p(state, layout.FRAME), layout.NORMS), 1) == 4


@function
def joins(state):
    """Whether attention's output gets a bias or a norm before it is added."""
    return has_post_norms(state) or size(argument(p(state, layout.FRAME), O_BIASES), 0) > 0


@function
def attention_joins(state, phase, layer):
    """A phase: attention's output, with its bias, is finished in X1."""
    x, y, parts = p(state, layout.X0), p(state, layout.X1), rows_of(state) if joins(state) else types.int64(0)
    joining_phase(state, phase, parts, layer, layout.ATTENTION_POST_NORM, x, y)


@function
def ffn_joins(state, phase, layer):
    """A phase: the feed-forward's output is finished in X0."""
    x, y, parts = p(state, layout.X1), p(state, layout.X0), rows_of(state) if has_post_norms(state) else types.int64(0)
    joining_phase(state, phase, parts, layer, layout.FFN_POST_NORM, x, y)


@function
def joining_phase(state, phase, parts, layer, i, x, y):
    """Rows y, through the layer's i-th norm where layers have it, and added to rows x. A part is a row."""
    d = p(state, layout.D)
    while True:
        row = team.take(state, phase)
        if row >= parts:
            break
        one, other = x + 4 * d * row, y + 4 * d * row
        if has_post_norms(state):
            normalised(other, layout.norm(state, layer, i), d, layout.eps_of(state), other)
        for at in range(0, 4 * d, 64):
            store(other + at, load(one + at) + load(other + at))
        team.done(state, phase)
    team.wait(state, phase, parts, 0, 0)
