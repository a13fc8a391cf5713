"""The fused step's state beside its phases: sizes of the model and of this call, shared vectors, and their places.

A call has B sequences of T tokens each: R = B T rows, row b T + t at position positions[b] + t of its sequence. Rows of
padding, whose positions are below 0, see nothing, are kept nowhere, and are left out of R where there is one sequence
and not all logits are wanted.

Shared, float32 unless noted: two hidden vectors per row [R, D]; qkv [R, N]; pieces of attention [B, K, T, H/K,
pieces, STRIDE bytes]; rounded activations of the feed-forward (`products`); the best logits [parts, M], of the M rows
whose logits are wanted: index int32, value.
"""

from __future__ import annotations

from numba import types

from llama_jax.kernels.native import team
from llama_jax.kernels.native.attention import CHUNK, HEADER
from llama_jax.kernels.native.block_types import COLUMNS, ROWS
from llama_jax.kernels.native.ffi import DESCRIPTION, argument, data, size
from llama_jax.kernels.native.machine import function, load_f32, load_i32
from llama_jax.kernels.native.operands import MATRICES, NORMS, POSITION
from llama_jax.kernels.native.operands import TOKENS as IDS
from llama_jax.kernels.native.products import activation_bytes
from llama_jax.kernels.native.vectors import MORE

f4 = types.float32
p = team.parameter  # short: every line reads some

(FRAME, D, FF, HEADS, KV, DIM, LAYERS, SLOTS, V, BIAS) = range(10)
SEQUENCES, TOKENS, WANTED, PIECES_EACH, EPS, GROUPS, TEAM, THREADS = range(10, 18)
ID, COS_AT, SIN_AT = range(18, 21)  # of the first row
CACHED_HEADS = 21  # key heads that the cache has a layer, of all its sequences
X0, X1, QKV, PIECES, ACT, BEST, WEIGHTS = range(22, 29)
ATTENTION_NORM, FFN_NORM, ATTENTION_POST_NORM, FFN_POST_NORM = range(4)
QUERY, KEY, VALUE, MATRIX_O, GATE, UP, DOWN = range(MATRICES)


@function
def rows_of(state):
    return p(state, SEQUENCES) * p(state, TOKENS)


@function
def qkv_columns(state):
    return (p(state, HEADS) + 2 * p(state, KV)) * p(state, DIM)


@function
def stride_of(state):
    """Bytes of a piece of attention."""
    return 4 * (p(state, DIM) + HEADER)


@function
def eps_of(state):
    return load_f32(state + team.PARAMETERS + 8 * EPS)


@function
def weight(state, layer, i):
    """A layer's i-th matrix, to be read as a buffer is."""
    return p(state, WEIGHTS) + DESCRIPTION * (MATRICES * layer + i)


@function
def norm(state, layer, i):
    """Address of a layer's i-th norm."""
    if MORE:
        norms = argument(p(state, FRAME), NORMS)
        return data(norms) + 4 * p(state, D) * (size(norms, 1) * layer + i)
    return data(argument(p(state, FRAME), NORMS)) + 4 * p(state, D) * (2 * layer + i)


@function
def given_position(frame, sequence):
    """Position of a sequence's first token of this call, below 0 if that is padding."""
    return types.int64(load_i32(data(argument(frame, POSITION)) + 4 * sequence))


@function
def position_of(state, sequence):
    """Of its first row: its tokens of this call end at the same place with and without padding's rows."""
    frame = p(state, FRAME)
    return given_position(frame, sequence) + size(argument(frame, IDS), 1) - p(state, TOKENS)


@function
def pieces(position):
    """Pieces of attention of a row at this position; 0 for padding."""
    return max(position, -1) // CHUNK + 1


@function
def piece_at(state, sequence, head, token):
    """Where the pieces of a row's query head begin."""
    kv, many = p(state, KV), p(state, HEADS) // p(state, KV)
    group = (sequence * kv + head // many) * p(state, TOKENS) + token
    return p(state, PIECES) + stride_of(state) * p(state, PIECES_EACH) * (group * many + head % many)


@function
def shared_room(state, i):
    """Bytes of the shared vectors X0 … BEST."""
    rows = rows_of(state)
    if i <= X1:
        return 4 * rows * p(state, D)
    if i == QKV:
        return 4 * rows * qkv_columns(state)
    if i == PIECES:
        return rows * p(state, HEADS) * p(state, PIECES_EACH) * stride_of(state)
    if i == ACT:
        return activation_bytes(rows, p(state, FF) // COLUMNS)
    return 8 * p(state, GROUPS) * p(state, WANTED)


@function
def hidden_bytes(state):
    """A thread's own vectors: one of the model, or the queries of a key head and a key, or a feed-forward's run of 32
    in every row with its gate and its up projection."""
    kv, dim = p(state, KV), p(state, DIM)
    queries = (p(state, TOKENS) * p(state, HEADS) // kv + 1) * dim
    return 4 * max(max(p(state, D), p(state, HEADS) * dim), max(queries, 4 * ROWS * rows_of(state)))


@function
def scratch_bytes(state):
    """A thread's own memory: that, weights of pieces, and rounded activations."""
    blocks = max(p(state, D), p(state, HEADS) * p(state, DIM)) // COLUMNS
    return hidden_bytes(state) + 4 * p(state, PIECES_EACH) + 64 + activation_bytes(rows_of(state), blocks)
