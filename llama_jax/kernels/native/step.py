"""The phases of a step, each shared by a team: R rows of tokens through all layers and the head.

A layer has five: qkv, attention (`heads`), o, gate_up, down; the head (`vocabulary`) comes last. Every thread does
short work (norms, rounding of activations, joining pieces of attention) for itself, which costs less than waiting for
one that does it for all.
"""

from __future__ import annotations

from numba import types

from llama_jax.kernels.native import features, layout, team
from llama_jax.kernels.native.block_types import COLUMNS, ROWS
from llama_jax.kernels.native.ffi import argument, data, size
from llama_jax.kernels.native.heads import attention_parts, attention_phase, mixed
from llama_jax.kernels.native.lanes import exponential, load, splat, store
from llama_jax.kernels.native.layout import p, rows_of, weight
from llama_jax.kernels.native.machine import free, function, malloc
from llama_jax.kernels.native.operands import BIASES, HEAD
from llama_jax.kernels.native.products import multiply, round_blocks
from llama_jax.kernels.native.rows import ask, begins, first_part, group_at, normalised_rows, parts_of
from llama_jax.kernels.native.vectors import MORE
from llama_jax.kernels.native.vocabulary import head_phase

PHASES_PER_LAYER = 7 if MORE else 5
f4 = types.float32
# lines of 64 bytes that a waiting thread asks for: its first of the next product, well within its second-level cache
AHEAD = 512


@function
def product_phase(state, me, phase, buffer, columns, at, runs, base, base_stride, to, after):
    """All columns of a product of all rows, shared among the team. buffer: the weight, or the first of those whose
    columns stand side by side. at: rounded activations. after: where this thread reads next."""
    groups = (columns + ROWS - 1) // ROWS
    parts = parts_of(state, groups)
    while True:
        part = team.take_own(state, phase, parts, first_part(state, me, parts))
        if part >= parts:
            break
        for g in range(team.share(groups, parts, part), team.share(groups, parts, part + 1)):
            weight_of, group = group_at(buffer, g)
            kind, add, out = size(weight_of, 2), base + 4 * ROWS * g if base != 0 else 0, to + 4 * ROWS * g
            here, kept = data(weight_of) + group * size(weight_of, 1) * kind, min(columns - ROWS * g, ROWS)
            multiply(here, kind, runs, at, rows_of(state), add, base_stride, out, 4 * columns, kept)
        team.done(state, phase)
    team.wait(state, phase, parts, after, AHEAD)


@function
def qkv_begins(state, me, layer):
    groups = layout.qkv_columns(state) // ROWS
    return begins(state, me, weight(state, layer, layout.QUERY), groups)


@function
def o_begins(state, me, layer):
    return begins(state, me, weight(state, layer, layout.MATRIX_O), p(state, layout.D) // ROWS)


@function
def gate_begins(state, me, layer):
    return begins(state, me, weight(state, layer, layout.GATE), p(state, layout.FF) // ROWS)


@function
def qkv_phase(state, me, phase, layer, hidden, scratch):
    d, columns = p(state, layout.D), layout.qkv_columns(state)
    if team.over(state, phase, parts_of(state, (columns + ROWS - 1) // ROWS)):
        return
    ask(qkv_begins(state, me, layer))
    normalised_rows(state, p(state, layout.X0), layout.norm(state, layer, layout.ATTENTION_NORM), hidden, scratch)
    frame, buffer, after = p(state, layout.FRAME), weight(state, layer, layout.QUERY), o_begins(state, me, layer)
    base = data(argument(frame, BIASES)) + 4 * columns * layer if p(state, layout.BIAS) == 1 else 0
    product_phase(state, me, phase, buffer, columns, scratch, d // COLUMNS, base, 0, p(state, layout.QKV), after)


@function
def o_phase(state, me, phase, layer, hidden, room, scratch):
    d, rows, runs = p(state, layout.D), rows_of(state), p(state, layout.HEADS) * p(state, layout.DIM) // COLUMNS
    if team.over(state, phase, parts_of(state, d // ROWS)):
        return
    ask(o_begins(state, me, layer))
    for row in range(rows):
        mixed(state, layer, row, room, hidden)
        round_blocks(hidden, runs, 0, runs, scratch, rows, row)
    x, buffer, after = p(state, layout.X0), weight(state, layer, layout.MATRIX_O), gate_begins(state, me, layer)
    stride = 4 * d
    if MORE and features.joins(state):
        x, stride = features.o_bias(state, layer), types.int64(0)
    product_phase(state, me, phase, buffer, d, scratch, runs, x, stride, p(state, layout.X1), after)


@function
def gate_up_phase(state, me, phase, layer, hidden, scratch):
    """A part is some runs of 32 feed-forward values: their gate, their up projection, silu(gate) up, rounded for the
    next product."""
    d, blocks = p(state, layout.D), p(state, layout.FF) // COLUMNS
    parts = parts_of(state, blocks)
    if team.over(state, phase, parts):
        return
    ask(gate_begins(state, me, layer))
    normalised_rows(state, p(state, layout.X1), layout.norm(state, layer, layout.FFN_NORM), hidden, scratch)
    while True:
        part = team.take_own(state, phase, parts, first_part(state, me, parts))
        if part >= parts:
            break
        for b in range(team.share(blocks, parts, part), team.share(blocks, parts, part + 1)):
            gated(state, layer, b, scratch, hidden)
        team.done(state, phase)
    down = begins(state, me, weight(state, layer, layout.DOWN), d // ROWS)
    team.wait(state, phase, parts, down, AHEAD)


@function
def gated(state, layer, b, scratch, room):
    """One run of 32 values in every row. room: gates [R, 16], ups [R, 16], values [R, 32]."""
    rows, runs, blocks = rows_of(state), p(state, layout.D) // COLUMNS, p(state, layout.FF) // COLUMNS
    gate, up = weight(state, layer, layout.GATE), weight(state, layer, layout.UP)
    ups, values, one = room + 64 * rows, room + 128 * rows, splat(f4(1))
    for i in range(2):
        left, right = (2 * b + i) * size(gate, 1) * size(gate, 2), (2 * b + i) * size(up, 1) * size(up, 2)
        multiply(data(gate) + left, size(gate, 2), runs, scratch, rows, 0, 0, room, 64, ROWS)
        multiply(data(up) + right, size(up, 2), runs, scratch, rows, 0, 0, ups, 64, ROWS)
        for row in range(rows):
            x = load(room + 64 * row)
            if MORE:
                x = features.activated(state, x)
            else:
                x = x / (one + exponential(splat(f4(0)) - x))
            store(values + 128 * row + 64 * i, x * load(ups + 64 * row))
    for row in range(rows):
        round_blocks(values + 128 * row, 1, b, blocks, p(state, layout.ACT), rows, row)


@function
def down_phase(state, me, phase, layer):
    d, blocks, x = p(state, layout.D), p(state, layout.FF) // COLUMNS, p(state, layout.X1)
    if layer + 1 == p(state, layout.LAYERS):
        head = argument(p(state, layout.FRAME), HEAD)
        after = begins(state, me, head, size(head, 0))
    else:
        after = qkv_begins(state, me, layer + 1)
    buffer, at = weight(state, layer, layout.DOWN), p(state, layout.ACT)
    stride = 4 * d
    if MORE and features.has_post_norms(state):
        x, stride = types.int64(0), types.int64(0)
    product_phase(state, me, phase, buffer, d, at, blocks, x, stride, p(state, layout.X0), after)


@function
def work(state, me):
    hidden = malloc(layout.scratch_bytes(state))
    if hidden == 0:
        return False
    room = hidden + layout.hidden_bytes(state)
    scratch = room + 4 * p(state, layout.PIECES_EACH) + 64
    for layer in range(p(state, layout.LAYERS)):
        phase = PHASES_PER_LAYER * layer
        qkv_phase(state, me, phase, layer, hidden, scratch)
        attention_phase(state, phase + 1, layer, hidden)
        team.wait(state, phase + 1, attention_parts(state), o_begins(state, me, layer), AHEAD)
        o_phase(state, me, phase + 2, layer, hidden, room, scratch)
        phase += 3
        if MORE:
            features.attention_joins(state, phase, layer)
            phase += 1
        gate_up_phase(state, me, phase, layer, hidden, scratch)
        down_phase(state, me, phase + 1, layer)
        if MORE:
            features.ffn_joins(state, phase + 2, layer)
    head_phase(state, me, PHASES_PER_LAYER * p(state, layout.LAYERS), hidden, scratch)
    free(hidden)
    return True
