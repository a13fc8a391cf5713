"""`llama_jax_fused`: tokens of a Llama or Qwen2 model, embedding to logits, in one call: one token, several of a
sequence, or of several sequences (`operands`, `step`). `llama_jax_fused_more`: of families that have more (`features`),
from the same source as another object."""

from __future__ import annotations

from llama_jax.kernels.native import features, layout, step, team
from llama_jax.kernels.native.block_types import COLUMNS, Q6_K, ROWS, expand_run, known, runs_of
from llama_jax.kernels.native.ffi import DESCRIPTION, argument, data, describe, executes, failure, number, result, size
from llama_jax.kernels.native.layout import p
from llama_jax.kernels.native.machine import (
    address_of,
    entry,
    function,
    load_f32,
    load_i32,
    stack,
    store_f32,
    store_i32,
    text,
)
from llama_jax.kernels.native.operands import (
    BLOCKS,
    COS,
    EMBEDDING,
    HEAD,
    KEYS,
    MATRICES,
    NORM,
    SIN,
    TOKENS,
    UNIT,
    bias_of,
    feed_forward,
    heads_of,
    key_heads_of,
    matrix,
    problem,
    sequences_of,
    tokens_of,
)
from llama_jax.kernels.native.pack import alone
from llama_jax.kernels.native.vectors import MORE

NAME = "llama_jax_fused_more" if MORE else "llama_jax_fused"
PARTS, HEAD_PARTS = 2, 8  # parts a thread of a product, and of the head's
helper_address = address_of(f"{NAME}_help")
no_memory = text("fused: out of memory")
_group = stack(Q6_K)  # the largest
_sizes = stack(team.PHASES)  # a state's parameters, before there is one


@function
def embed(buffer, token, runs, to):
    """A row of a quantised table as float32; of a file's own table, by a group that has no other row."""
    kind = size(buffer, 2)
    if not known(kind):
        group, row, many = _group(), data(buffer) + token * size(buffer, 1) * kind, runs_of(ROWS * kind)
        for run in range(runs):
            if run % many == 0:
                alone(row + kind * (run // many), ROWS * kind, group)
            expand_run(group, ROWS * kind, run % many, 0, to + 4 * COLUMNS * run)
        return
    row, many = data(buffer) + token // ROWS * size(buffer, 1) * kind, runs_of(kind)
    for run in range(runs):
        expand_run(row + kind * (run // many), kind, run % many, token % ROWS, to + 4 * COLUMNS * run)


@entry
def helper(state):
    me = team.enter(state)
    if me != 0:
        step.work(state, me)
    team.leave(state)
    return 0


@function
def padding(frame):
    """Rows of padding at the beginning of a call that are not needed: of a single sequence, if not all logits are
    wanted."""
    if sequences_of(frame) > 1 or size(result(frame, 0), 0) == tokens_of(frame):
        return 0
    return min(max(-layout.given_position(frame, 0), 0), tokens_of(frame))


@function
def pieces_each(frame):
    """Pieces of attention of the row with the most."""
    most = 0
    for sequence in range(sequences_of(frame)):
        most = max(most, layout.pieces(layout.given_position(frame, sequence) + tokens_of(frame) - 1))
    return most


@function
def describe_call(frame, state, skipped):
    """Sizes and places of the operands, as parameters of `state`."""
    keys, half = argument(frame, KEYS), size(argument(frame, KEYS), 3) // 2
    if MORE:
        half = size(argument(frame, COS), 2)
    threads = team.threads(frame, min(size(argument(frame, HEAD), 0), team.MOST // HEAD_PARTS))
    sizes = (
        frame,
        size(argument(frame, NORM), 0),
        feed_forward(frame),
        heads_of(frame),
        key_heads_of(frame),
        size(keys, 3),
        size(keys, 0),
        size(keys, 2) * ROWS,
        size(result(frame, 0), 1),
        1 if bias_of(frame) else 0,
        sequences_of(frame),
        tokens_of(frame) - skipped,
        size(result(frame, 0), 0),
        pieces_each(frame),
        0,
        min(HEAD_PARTS * threads, size(argument(frame, HEAD), 0)),
        threads if threads == 1 else PARTS * threads,
        threads,
        data(argument(frame, TOKENS)) + 4 * skipped,
        data(argument(frame, COS)) + 4 * half * skipped,
        data(argument(frame, SIN)) + 4 * half * skipped,
        size(keys, 1),
    )
    for i in range(len(sizes)):
        team.set_parameter(state, i, sizes[i])
    store_f32(state + team.PARAMETERS + 8 * layout.EPS, number(frame, 1))


@function
def prepared(frame, skipped):
    """The state of this call with all its parameters; 0 when out of memory."""
    sizes = _sizes()
    describe_call(frame, sizes, skipped)
    layers = p(sizes, layout.LAYERS)
    room = DESCRIPTION * MATRICES * layers + 64
    for i in range(layout.X0, layout.BEST + 1):
        room += layout.shared_room(sizes, i)
    phases = step.PHASES_PER_LAYER * layers + 1
    state = team.assembled(phases, room)
    if state == 0:
        return state
    for i in range(layout.X0):
        team.set_parameter(state, i, p(sizes, i))
    place = team.shared(state, phases)
    for i in range(layout.X0, layout.BEST + 1):
        team.set_parameter(state, i, place)
        place += layout.shared_room(sizes, i)
    place = (place + 7) // 8 * 8  # descriptions hold 64-bit numbers
    team.set_parameter(state, layout.WEIGHTS, place)
    for layer in range(layers):
        for i in range(MATRICES):
            address = data(argument(frame, BLOCKS)) + UNIT * matrix(frame, layer, i, 0)
            describe(place, address, matrix(frame, layer, i, 1), matrix(frame, layer, i, 2), matrix(frame, layer, i, 3))
            place += DESCRIPTION
    d, x = p(sizes, layout.D), p(state, layout.X0)
    for row in range(layout.rows_of(state)):
        token = load_i32(p(state, layout.ID) + 4 * row)
        embed(argument(frame, EMBEDDING), token, d // COLUMNS, x + 4 * d * row)
    if MORE:
        features.scale_embedding(state, x)
    team.invite(frame, state, helper_address(), p(state, layout.THREADS) - 1)
    return state


@function
def say_best(frame, state):
    """The best token of each row of logits, of all parts' best: the first of the largest."""
    bests, wanted = p(state, layout.BEST), p(state, layout.WANTED)
    for row in range(wanted):
        best = bests + 8 * row
        for i in range(1, p(state, layout.GROUPS)):
            other = bests + 8 * (wanted * i + row)
            if load_f32(other + 4) > load_f32(best + 4):
                best = other
        store_i32(data(result(frame, 1)) + 4 * row, load_i32(best))


@entry
def handler(frame):
    if not executes(frame):
        return 0
    wrong = problem(frame)
    if wrong != 0:
        return failure(frame, wrong)
    skipped = padding(frame)
    if skipped == tokens_of(frame):
        return 0
    state = prepared(frame, skipped)
    if state == 0:
        return failure(frame, no_memory())
    worked = step.work(state, 0)
    if worked:
        say_best(frame, state)
    team.dismiss(state)
    return 0 if worked else failure(frame, no_memory())


ENTRIES = {NAME: handler, f"{NAME}_help": helper}
