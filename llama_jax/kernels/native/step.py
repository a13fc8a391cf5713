"""The phases of a step, each shared by a team: R rows of tokens through all layers and the head.

A layer has five: qkv, attention (`heads`), o, gate_up, down; the head is the last. What is short (norms, rounding of
activations, joining pieces of attention) every thread does for itself, which costs less than waiting for one that does
it for all.
"""

from __future__ import annotations

from numba import types

from llama_jax.kernels.native import layout, team
from llama_jax.kernels.native.ffi import argument, data, result, size
from llama_jax.kernels.native.heads import attention_parts, attention_phase, mixed
from llama_jax.kernels.native.lanes import exponential, fma, largest, load, prefetch, splat, store, total
from llama_jax.kernels.native.layout import p, rows_of, weight
from llama_jax.kernels.native.machine import free, function, load_f32, malloc, square_root, store_f32, store_i32
from llama_jax.kernels.native.operands import BIASES, HEAD, NORM
from llama_jax.kernels.native.products import COLUMNS, ROWS, multiply, round_blocks

PHASES_PER_LAYER = 5
f4 = types.float32
# lines of 64 bytes that a waiting thread asks for: its first of the next product, well within its second-level cache
AHEAD, FIRST = (512, 32)


@function
def normalised(x, w, d, eps, to):
    """RMS norm (norm.py)."""
    squares = splat(f4(0))
    for i in range(0, 4 * d, 64):
        value = load(x + i)
        squares = fma(value, value, squares)
    scale = splat(f4(1) / square_root(total(squares) / f4(d) + eps))
    for i in range(0, 4 * d, 64):
        store(to + i, load(x + i) * scale * load(w + i))


@function
def normalised_rows(state, x, w, hidden, scratch):
    """All rows of a hidden vector, normalised and rounded into a thread's scratch."""
    d, rows = p(state, layout.D), rows_of(state)
    blocks = d // COLUMNS
    for row in range(rows):
        normalised(x + 4 * d * row, w, d, layout.eps_of(state), hidden)
        round_blocks(hidden, blocks, 0, blocks, scratch, rows, row)


@function
def begins(state, me, buffer):
    """Where in a weight the me-th thread begins to read."""
    groups = size(buffer, 0)
    return data(buffer) + team.share(groups, p(state, layout.THREADS), me) * size(buffer, 1) * size(buffer, 2)


@function
def ask(address):
    """Have memory at work while this thread computes something short."""
    for line in range(0, 64 * FIRST, 64):
        prefetch(address + line)


@function
def parts_of(state, groups):
    return min(groups, p(state, layout.TEAM))


@function
def first_part(state, me, parts):
    """The part that is meant for the me-th thread before others."""
    return parts * me // p(state, layout.THREADS)


@function
def product_phase(state, me, phase, buffer, columns, at, blocks, base, base_stride, to, after):
    """All columns of a product of all rows, shared among the team. at: rounded activations. after: the weight that is
    needed next."""
    groups, w, kind = (columns + ROWS - 1) // ROWS, data(buffer), size(buffer, 2)
    parts = parts_of(state, groups)
    while True:
        part = team.take_own(state, phase, parts, first_part(state, me, parts))
        if part >= parts:
            break
        for g in range(team.share(groups, parts, part), team.share(groups, parts, part + 1)):
            here, add, out = w + g * blocks * kind, base + 4 * ROWS * g if base != 0 else 0, to + 4 * ROWS * g
            kept = min(columns - ROWS * g, ROWS)
            multiply(here, kind, blocks, at, rows_of(state), add, base_stride, out, 4 * columns, kept)
        team.done(state, phase)
    team.wait(state, phase, parts, begins(state, me, after), AHEAD)


@function
def qkv_phase(state, me, phase, layer, hidden, scratch):
    d, columns = p(state, layout.D), layout.qkv_columns(state)
    if team.over(state, phase, parts_of(state, (columns + ROWS - 1) // ROWS)):
        return
    buffer, after = weight(state, layer, layout.MATRIX_QKV), weight(state, layer, layout.MATRIX_O)
    ask(begins(state, me, buffer))
    normalised_rows(state, p(state, layout.X0), layout.norm(state, layer, layout.ATTENTION_NORM), hidden, scratch)
    frame = p(state, layout.FRAME)
    base = data(argument(frame, BIASES)) + 4 * columns * layer if p(state, layout.BIAS) == 1 else 0
    product_phase(state, me, phase, buffer, columns, scratch, d // COLUMNS, base, 0, p(state, layout.QKV), after)


@function
def o_phase(state, me, phase, layer, hidden, room, scratch):
    d, rows, blocks = p(state, layout.D), rows_of(state), p(state, layout.HEADS) * p(state, layout.DIM) // COLUMNS
    if team.over(state, phase, parts_of(state, d // ROWS)):
        return
    buffer, after = weight(state, layer, layout.MATRIX_O), weight(state, layer, layout.GATE_UP)
    ask(begins(state, me, buffer))
    for row in range(rows):
        mixed(state, row, room, hidden)
        round_blocks(hidden, blocks, 0, blocks, scratch, rows, row)
    x = p(state, layout.X0)
    product_phase(state, me, phase, buffer, d, scratch, blocks, x, 4 * d, p(state, layout.X1), after)


@function
def gate_up_phase(state, me, phase, layer, hidden, scratch):
    """A part is some runs of 32 feed-forward values: their gate, their up projection, silu(gate) up, rounded for the
    next product."""
    d, blocks = p(state, layout.D), p(state, layout.FF) // COLUMNS
    parts = parts_of(state, blocks)
    if team.over(state, phase, parts):
        return
    buffer = weight(state, layer, layout.GATE_UP)
    begin = 2 * team.share(blocks, p(state, layout.THREADS), me) * (d // COLUMNS) * size(buffer, 2)
    ask(data(buffer) + begin)
    normalised_rows(state, p(state, layout.X1), layout.norm(state, layer, layout.FFN_NORM), hidden, scratch)
    while True:
        part = team.take_own(state, phase, parts, first_part(state, me, parts))
        if part >= parts:
            break
        for b in range(team.share(blocks, parts, part), team.share(blocks, parts, part + 1)):
            gated(state, buffer, b, scratch, hidden)
        team.done(state, phase)
    team.wait(state, phase, parts, begins(state, me, weight(state, layer, layout.DOWN)), AHEAD)


@function
def gated(state, buffer, b, scratch, room):
    """One run of 32 values in every row. room: gates [R, 16], ups [R, 16], values [R, 32]."""
    rows, columns, blocks = rows_of(state), p(state, layout.D) // COLUMNS, p(state, layout.FF) // COLUMNS
    w, kind, half = data(buffer), size(buffer, 2), p(state, layout.FF) // ROWS
    ups, values, one = room + 64 * rows, room + 128 * rows, splat(f4(1))
    for i in range(2):
        gate, up = w + (2 * b + i) * columns * kind, w + (half + 2 * b + i) * columns * kind
        multiply(gate, kind, columns, scratch, rows, 0, 0, room, 64, ROWS)
        multiply(up, kind, columns, scratch, rows, 0, 0, ups, 64, ROWS)
        for row in range(rows):
            x = load(room + 64 * row)
            store(values + 128 * row + 64 * i, x / (one + exponential(splat(f4(0)) - x)) * load(ups + 64 * row))
    for row in range(rows):
        round_blocks(values + 128 * row, 1, b, blocks, p(state, layout.ACT), rows, row)


@function
def down_phase(state, me, phase, layer):
    d, blocks, x = p(state, layout.D), p(state, layout.FF) // COLUMNS, p(state, layout.X1)
    last = layer + 1 == p(state, layout.LAYERS)
    after = argument(p(state, layout.FRAME), HEAD) if last else weight(state, layer + 1, layout.MATRIX_QKV)
    buffer, at = weight(state, layer, layout.DOWN), p(state, layout.ACT)
    product_phase(state, me, phase, buffer, d, at, blocks, x, 4 * d, p(state, layout.X0), after)


@function
def head_phase(state, me, phase, hidden, scratch):
    """Logits of the rows that are wanted, all or the last of each sequence, and the best of each part."""
    d, frame, wanted = p(state, layout.D), p(state, layout.FRAME), p(state, layout.WANTED)
    parts, v = p(state, layout.GROUPS), p(state, layout.V)
    if wanted == 0 or team.over(state, phase, parts):
        return
    buffer, blocks, groups = argument(frame, HEAD), d // COLUMNS, (v + ROWS - 1) // ROWS
    ask(begins(state, me, buffer))
    each = rows_of(state) // wanted
    for row in range(wanted):
        x = p(state, layout.X0) + 4 * d * (each * (row + 1) - 1)
        normalised(x, data(argument(frame, NORM)), d, layout.eps_of(state), hidden)
        round_blocks(hidden, blocks, 0, blocks, scratch, wanted, row)
    logits, w, kind = data(result(frame, 0)), data(buffer), size(buffer, 2)
    while True:
        part = team.take_own(state, phase, parts, first_part(state, me, parts))
        if part >= parts:
            break
        begin, end = team.share(groups, parts, part), team.share(groups, parts, part + 1)
        for g in range(begin, end):
            out, kept = logits + 4 * ROWS * g, min(v - ROWS * g, ROWS)
            multiply(w + g * blocks * kind, kind, blocks, scratch, wanted, 0, 0, out, 4 * v, kept)
        for row in range(wanted):
            mine, to = logits + 4 * v * row, p(state, layout.BEST) + 8 * (wanted * part + row)
            best = best_of(mine, ROWS * begin, min(ROWS * end, v))
            store_i32(to, best)
            store_f32(to + 4, load_f32(mine + 4 * best))
        team.done(state, phase)
    team.wait(state, phase, parts, 0, 0)


@function
def best_of(logits, begin, end):
    """The first of the largest of logits begin…end-1."""
    top, best, at = load_f32(logits + 4 * begin), begin, begin
    while at + ROWS <= end:
        if largest(load(logits + 4 * at)) > top:
            for i in range(at, at + ROWS):
                if load_f32(logits + 4 * i) > top:
                    top, best = load_f32(logits + 4 * i), i
        at += ROWS
    for i in range(at, end):
        if load_f32(logits + 4 * i) > top:
            top, best = load_f32(logits + 4 * i), i
    return best


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
        after = weight(state, layer, layout.MATRIX_O)
        team.wait(state, phase + 1, attention_parts(state), begins(state, me, after), AHEAD)
        o_phase(state, me, phase + 2, layer, hidden, room, scratch)
        gate_up_phase(state, me, phase + 3, layer, hidden, scratch)
        down_phase(state, me, phase + 4, layer)
    head_phase(state, me, PHASES_PER_LAYER * p(state, layout.LAYERS), hidden, scratch)
    free(hidden)
    return True
