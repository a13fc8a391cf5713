"""`llama_jax_fused`: one decoded token of a Llama or Qwen2 model, embedding to logits, in one call (`operands`,
`step`)."""

from __future__ import annotations

from numba import types

from llama_jax.kernels.native import step, team
from llama_jax.kernels.native.attention import CHUNK, HEADER
from llama_jax.kernels.native.ffi import DESCRIPTION, argument, data, describe, executes, failure, number, result, size
from llama_jax.kernels.native.lanes import load_half, store
from llama_jax.kernels.native.machine import (
    address_of,
    entry,
    function,
    load_f32,
    load_i8,
    load_i32,
    stack,
    store_f32,
    store_i32,
    text,
)
from llama_jax.kernels.native.operands import (
    BLOCKS,
    EMBEDDING,
    HEAD,
    KEYS,
    MATRICES,
    NORM,
    PAD,
    SLOT,
    TOKEN,
    UNIT,
    bias_of,
    feed_forward,
    heads_of,
    matrix,
    problem,
)
from llama_jax.kernels.native.products import COLUMNS, Q4_1, Q8_0, ROWS

PARTS, HEAD_PARTS = 2, 8  # parts a thread of a product, and of the head's
f4 = types.float32
helper_address = address_of("llama_jax_fused_help")
no_memory = text("fused: out of memory")
_lanes = stack(64)


@function
def embed(buffer, token, blocks, to):
    """A row of a quantised table as float32."""
    kind = size(buffer, 2)
    row, lane = data(buffer) + token // ROWS * blocks * kind, token % ROWS
    lanes = _lanes()
    for b in range(blocks):
        at = row + kind * b
        if kind == Q8_0:
            store(lanes, load_half(at + 512))
            scale = load_f32(lanes + 4 * lane)
            for j in range(COLUMNS):
                store_f32(to + 4 * (COLUMNS * b + j), scale * f4(load_i8(at + 64 * (j // 4) + 4 * lane + j % 4)))
            continue
        store(lanes, load_half(at + 256))
        scale, offset = load_f32(lanes + 4 * lane), f4(0)
        if kind == Q4_1:
            store(lanes, load_half(at + 288))
            offset = load_f32(lanes + 4 * lane)
        for j in range(ROWS):
            both = types.int32(load_i8(at + 64 * (j // 4) + 4 * lane + j % 4)) & 255
            for half, code in ((0, both & 15), (1, both >> 4)):
                value = scale * f4(code) + offset if kind == Q4_1 else scale * f4(code - 8)
                store_f32(to + 4 * (COLUMNS * b + ROWS * half + j), value)


@entry
def helper(state):
    me = team.enter(state)
    if me != 0:
        step.work(state, me)
    team.leave(state)
    return 0


@function
def room_for(layers, d, ff, heads, kv, dim, many, parts):
    """Bytes of shared memory: matrices, two hidden vectors, qkv, pieces of attention, feed-forward activations, best
    logits."""
    attention = 4 * (heads + 2 * kv) * dim + 4 * heads * many * (dim + HEADER)
    return DESCRIPTION * MATRICES * layers + 8 * d + attention + ff // COLUMNS * (COLUMNS + 12) + 8 * parts + 64


@function
def prepared(frame):
    """The state of this call with all its parameters; 0 when out of memory."""
    keys = argument(frame, KEYS)
    layers, kv, dim, slots = size(keys, 0), size(keys, 1), size(keys, 3), size(keys, 2) * ROWS
    d, ff, heads, v = size(argument(frame, NORM), 0), feed_forward(frame), heads_of(frame), size(result(frame, 0), 0)
    at, empty = types.int64(load_i32(data(argument(frame, SLOT)))), types.int64(load_i32(data(argument(frame, PAD))))
    many = at // CHUNK - empty // CHUNK + 1
    threads = team.threads(frame, min(size(argument(frame, HEAD), 0), team.MOST // HEAD_PARTS))
    groups = min(HEAD_PARTS * threads, size(argument(frame, HEAD), 0))
    phases = step.PHASES_PER_LAYER * layers + 1
    state = team.assembled(phases, room_for(layers, d, ff, heads, kv, dim, many, groups))
    if state == 0:
        return state
    sizes = (frame, d, ff, heads, kv, dim, layers, slots, at, empty, v, 1 if bias_of(frame) else 0)
    for i in range(len(sizes)):
        team.set_parameter(state, i, sizes[i])
    store_f32(state + team.PARAMETERS + 8 * step.EPS, number(frame, 1))
    team.set_parameter(state, step.STRIDE, 4 * (dim + HEADER))
    team.set_parameter(state, step.GROUPS, groups)
    team.set_parameter(state, step.TEAM, threads if threads == 1 else PARTS * threads)
    team.set_parameter(state, step.THREADS, threads)
    place = team.shared(state, phases)
    team.set_parameter(state, step.WEIGHTS, place)
    for layer in range(layers):
        for i in range(MATRICES):
            address = data(argument(frame, BLOCKS)) + UNIT * matrix(frame, layer, i, 0)
            describe(place, address, matrix(frame, layer, i, 1), matrix(frame, layer, i, 2), matrix(frame, layer, i, 3))
            place += DESCRIPTION
    blocks = ff // COLUMNS
    rooms = (
        4 * d,
        4 * d,
        4 * (heads + 2 * kv) * dim,
        4 * heads * many * (dim + HEADER),
        COLUMNS * blocks,
        4 * blocks,
        4 * blocks,
        4 * blocks,
    )
    for i in range(len(rooms)):
        team.set_parameter(state, step.X0 + i, place)
        place += rooms[i]
    team.set_parameter(state, step.BEST, place)
    embed(
        argument(frame, EMBEDDING), load_i32(data(argument(frame, TOKEN))), d // COLUMNS, team.parameter(state, step.X0)
    )
    team.invite(frame, state, helper_address(), threads - 1)
    return state


@entry
def handler(frame):
    if not executes(frame):
        return 0
    wrong = problem(frame)
    if wrong != 0:
        return failure(frame, wrong)
    state = prepared(frame)
    if state == 0:
        return failure(frame, no_memory())
    worked = step.work(state, 0)
    if worked:
        bests, best = team.parameter(state, step.BEST), 0
        for i in range(1, team.parameter(state, step.GROUPS)):
            if load_f32(bests + 8 * i + 4) > load_f32(bests + 8 * best + 4):
                best = i
        store_i32(data(result(frame, 1)), load_i32(bests + 8 * best))
    team.dismiss(state)
    return 0 if worked else failure(frame, no_memory())


ENTRIES = {"llama_jax_fused": handler, "llama_jax_fused_help": helper}
