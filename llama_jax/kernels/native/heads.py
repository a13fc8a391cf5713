"""The attention of a step, shared by a team: parts of heads and pieces of positions, and their joining."""

from __future__ import annotations

from numba import types

from llama_jax.kernels.native import features, layout, team
from llama_jax.kernels.native.attention import CHUNK, attend, merged, remember, rotated
from llama_jax.kernels.native.ffi import argument, data
from llama_jax.kernels.native.lanes import splat, store
from llama_jax.kernels.native.layout import p
from llama_jax.kernels.native.machine import function, square_root
from llama_jax.kernels.native.operands import KEYS, VALUES, number_of
from llama_jax.kernels.native.vectors import MORE

f4 = types.float32


@function
def attention_parts(state):
    return p(state, layout.SEQUENCES) * p(state, layout.KV) * p(state, layout.PIECES_EACH)


@function
def attention_phase(state, phase, layer, hidden):
    """A part is a piece of the positions of one key head of one sequence."""
    many, parts = p(state, layout.PIECES_EACH), attention_parts(state)
    while True:
        part = team.take(state, phase)
        if part >= parts:
            break
        # the last piece first: it has the most to do
        attend_piece(state, layer, part // many, many - 1 - part % many, hidden)
        team.done(state, phase)


@function
def attend_piece(state, layer, head, piece, hidden):
    """Write the new keys and values in this piece, then attend to it with all rows that may. head: counted through all
    sequences."""
    kv, dim, tokens, frame = p(state, layout.KV), p(state, layout.DIM), p(state, layout.TOKENS), p(state, layout.FRAME)
    sequence, heads = head // kv, p(state, layout.HEADS) // kv
    position, start = layout.position_of(state, sequence), piece * CHUNK
    last = position + tokens - 1
    if start > last:  # another sequence has more pieces
        return
    cached = layer * p(state, layout.CACHED_HEADS) + number_of(frame, sequence) * kv + head % kv
    cache = cached * p(state, layout.SLOTS) * dim * 2
    keys, values = data(argument(frame, KEYS)) + cache, data(argument(frame, VALUES)) + cache
    new = hidden + 4 * dim * heads * tokens
    begin = max(start - position, 0)  # rows before see nothing of it
    for token in range(begin, min(start + CHUNK - position, tokens)):
        key = qkv_at(state, sequence, token) + 4 * dim * (heads * kv + head % kv)
        if MORE:
            features.turned(state, layer, features.KEYS, sequence * tokens + token, key, new, f4(1))
        else:
            turned(state, sequence, token, key, new, f4(1))
        remember(new, key + 4 * dim * kv, keys, values, position + token, dim)
    end, window = tokens, types.int64(0)
    if MORE:
        end, window = features.rows_that_see(state, layer, position, start), features.window(state, layer)
        if end <= begin:
            return
    for token in range(begin, end):
        for i in range(heads):
            query = qkv_at(state, sequence, token) + 4 * dim * (head % kv * heads + i)
            to = hidden + 4 * dim * (heads * (token - begin) + i)
            if MORE:
                row, scale = sequence * tokens + token, features.score_scale(state)
                features.turned(state, layer, features.QUERIES, row, query, to, scale)
            else:
                turned(state, sequence, token, query, to, f4(1) / square_root(f4(dim)))
    to = layout.piece_at(state, sequence, head % kv * heads, begin) + layout.stride_of(state) * piece
    attend(
        hidden,
        heads * (end - begin),
        heads,
        position + begin,
        keys,
        values,
        start,
        min(start + CHUNK - 1, last),
        dim,
        to,
        layout.stride_of(state) * p(state, layout.PIECES_EACH),
        window,
    )


@function
def qkv_at(state, sequence, token):
    return p(state, layout.QKV) + 4 * layout.qkv_columns(state) * (sequence * p(state, layout.TOKENS) + token)


@function
def turned(state, sequence, token, x, to, scale):
    """A head at x of a row, rotated by the row's position."""
    dim = p(state, layout.DIM)
    at = 2 * dim * (sequence * p(state, layout.TOKENS) + token)  # bytes: half a head of float32
    rotated(x, to, p(state, layout.COS_AT) + at, p(state, layout.SIN_AT) + at, dim, scale)


@function
def mixed(state, layer, row, room, to):
    """A row's heads, their pieces joined, float32 [H h] at `to`; zeros for padding."""
    dim, tokens, heads = p(state, layout.DIM), p(state, layout.TOKENS), p(state, layout.HEADS)
    sequence, token = row // tokens, row % tokens
    many, stride = layout.pieces(layout.position_of(state, sequence) + token), layout.stride_of(state)
    if many == 0:
        for i in range(0, 4 * heads * dim, 64):
            store(to + i, splat(f4(0)))
        return
    first = types.int64(0)
    if MORE:
        first = features.first_seen(state, layer, layout.position_of(state, sequence) + token) // CHUNK
    for head in range(heads):
        at = layout.piece_at(state, sequence, head, token) + stride * first
        merged(at, many - first, stride, dim, room, to + 4 * dim * head)
