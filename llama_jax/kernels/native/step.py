"""The phases of one decoded token, each shared by a team.

A layer has five: qkv, attention, o, gate_up, down; the head is the last. What is short (norms, rounding of activations,
joining pieces of attention) every thread does for itself, which costs less than waiting for one that does it for all.
"""

from __future__ import annotations

from numba import types

from llama_jax.kernels.native import team
from llama_jax.kernels.native.attention import CHUNK, attend, merged, remember, rotated
from llama_jax.kernels.native.ffi import DESCRIPTION, argument, data, result, size
from llama_jax.kernels.native.lanes import exponential, fma, largest, load, prefetch, splat, store, total
from llama_jax.kernels.native.machine import free, function, load_f32, malloc, square_root, store_f32, store_i32
from llama_jax.kernels.native.operands import BIASES, COS, HEAD, KEYS, MATRICES, NORM, NORMS, SIN, VALUES
from llama_jax.kernels.native.products import COLUMNS, ROWS, group, quantise, store_some

PHASES_PER_LAYER = 5
f4 = types.float32
p = team.parameter  # short: every line reads some

# parameters of the state: sizes of the model and of this call, then places in the shared memory
FRAME, D, FF, HEADS, KV, DIM, LAYERS, SLOTS, AT, EMPTY, V, BIAS, EPS, GROUPS, TEAM, STRIDE, THREADS = range(17)
X0, X1, QKV, PIECES, ACT_Q, ACT_D, ACT_S, ACT_T, BEST, WEIGHTS = range(17, 27)
ATTENTION_NORM, FFN_NORM = range(2)
MATRIX_QKV, MATRIX_O, GATE_UP, DOWN = range(MATRICES)
# lines of 64 bytes that a waiting thread asks for: its first of the next product, well within its second-level cache
AHEAD, FIRST = (512, 32)


@function
def weight(state, layer, i):
    """A layer's i-th matrix, to be read as a buffer is."""
    return p(state, WEIGHTS) + DESCRIPTION * (MATRICES * layer + i)


@function
def norm(state, layer, i):
    """Address of a layer's i-th norm."""
    return data(argument(p(state, FRAME), NORMS)) + 4 * p(state, D) * (2 * layer + i)


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
def rows_of(buffer, first_group, last_group, rows, scratch, blocks, base, to):
    """Rows of a product into `to`, plus what is at `base` where that is not 0; activations as `rounded` left them in
    scratch."""
    w, kind = data(buffer), size(buffer, 2)
    q, d, s, t = activations(scratch, blocks)
    for g in range(first_group, last_group):
        found, kept, at = (
            group(w + g * blocks * kind, kind, blocks, q, d, s, t),
            min(rows - ROWS * g, ROWS),
            4 * ROWS * g,
        )
        if base != 0:
            found = found + load(base + at)
        store_some(to + at, found, kept)


@function
def activations(scratch, blocks):
    """Where in a thread's scratch (or in the shared room) rounded activations stand."""
    d = scratch + COLUMNS * blocks
    return scratch, d, d + 4 * blocks, d + 8 * blocks


@function
def rounded(x, columns, scratch):
    blocks = columns // COLUMNS
    q, d, s, t = activations(scratch, blocks)
    quantise(x, blocks, q, d, s, t)


@function
def begins(state, me, buffer):
    """Where in a weight the me-th thread begins to read."""
    groups = size(buffer, 0)
    return data(buffer) + team.share(groups, p(state, THREADS), me) * size(buffer, 1) * size(buffer, 2)


@function
def ask(address):
    """Have memory at work while this thread computes something short."""
    for line in range(0, 64 * FIRST, 64):
        prefetch(address + line)


@function
def product_phase(state, me, phase, buffer, rows, scratch, blocks, base, to, after):
    """All rows of a product, shared among the team. after: the weight that is needed next."""
    groups = (rows + ROWS - 1) // ROWS
    parts = parts_of(state, groups)
    while True:
        part = team.take_own(state, phase, parts, parts * me // p(state, THREADS))
        if part >= parts:
            break
        rows_of(
            buffer,
            team.share(groups, parts, part),
            team.share(groups, parts, part + 1),
            rows,
            scratch,
            blocks,
            base,
            to,
        )
        team.done(state, phase)
    team.wait(state, phase, parts, begins(state, me, after), AHEAD)


@function
def parts_of(state, groups):
    return min(groups, p(state, TEAM))


@function
def qkv_phase(state, me, phase, layer, hidden, scratch):
    d, rows = p(state, D), qkv_rows(state)
    if team.over(state, phase, parts_of(state, (rows + ROWS - 1) // ROWS)):
        return
    ask(begins(state, me, weight(state, layer, MATRIX_QKV)))
    normalised(p(state, X0), norm(state, layer, ATTENTION_NORM), d, eps_of(state), hidden)
    rounded(hidden, d, scratch)
    base = data(argument(p(state, FRAME), BIASES)) + 4 * rows * layer if p(state, BIAS) == 1 else 0
    after = weight(state, layer, MATRIX_O)
    product_phase(
        state, me, phase, weight(state, layer, MATRIX_QKV), rows, scratch, d // COLUMNS, base, p(state, QKV), after
    )


@function
def qkv_rows(state):
    return (p(state, HEADS) + 2 * p(state, KV)) * p(state, DIM)


@function
def eps_of(state):
    return load_f32(state + team.PARAMETERS + 8 * EPS)


@function
def chunks(state):
    """Pieces of attention a head."""
    return p(state, AT) // CHUNK - p(state, EMPTY) // CHUNK + 1


@function
def attention_phase(state, me, phase, layer, hidden):
    """A part is a piece of one key head's positions; the last piece also writes the new key and value."""
    dim, kv = p(state, DIM), p(state, KV)
    heads, many, pieces = p(state, HEADS) // kv, chunks(state), kv * chunks(state)
    qkv, at, empty = p(state, QKV), p(state, AT), p(state, EMPTY)
    cos, sin = data(argument(p(state, FRAME), COS)), data(argument(p(state, FRAME), SIN))
    scale = f4(1) / square_root(f4(dim))
    while True:
        part = team.take(state, phase)
        if part >= pieces:
            break
        head, piece = part // many, many - 1 - part % many  # the last piece first: it has the most to do
        cache = (layer * kv + head) * p(state, SLOTS) * dim * 2
        keys, values = data(argument(p(state, FRAME), KEYS)) + cache, data(argument(p(state, FRAME), VALUES)) + cache
        for i in range(heads):
            rotated(qkv + 4 * dim * (head * heads + i), hidden + 4 * dim * i, cos, sin, dim, scale)
        start = (empty // CHUNK + piece) * CHUNK
        if piece == many - 1:
            new = hidden + 4 * dim * heads
            rotated(qkv + 4 * dim * (heads * kv + head), new, cos, sin, dim, f4(1))
            remember(new, qkv + 4 * dim * (heads * kv + kv + head), keys, values, at, dim)
        to = p(state, PIECES) + p(state, STRIDE) * (head * heads * many + piece)
        attend(
            hidden, heads, keys, values, max(start, empty), min(start + CHUNK - 1, at), dim, to, p(state, STRIDE) * many
        )
        team.done(state, phase)
    team.wait(state, phase, pieces, begins(state, me, weight(state, layer, MATRIX_O)), AHEAD)


@function
def o_phase(state, me, phase, layer, hidden, scratch):
    d, dim, heads = p(state, D), p(state, DIM), p(state, HEADS)
    if team.over(state, phase, parts_of(state, d // ROWS)):
        return
    ask(begins(state, me, weight(state, layer, MATRIX_O)))
    many = chunks(state)
    for head in range(heads):
        at = p(state, PIECES) + p(state, STRIDE) * head * many
        merged(at, many, p(state, STRIDE), dim, scratch, hidden + 4 * dim * head)
    rounded(hidden, heads * dim, scratch)
    after = weight(state, layer, GATE_UP)
    product_phase(
        state,
        me,
        phase,
        weight(state, layer, MATRIX_O),
        d,
        scratch,
        heads * dim // COLUMNS,
        p(state, X0),
        p(state, X1),
        after,
    )


@function
def gate_up_phase(state, me, phase, layer, hidden, scratch):
    """A part is some runs of 32 feed-forward values: their gate, their up projection, silu(gate) up, rounded for the
    next product."""
    d, blocks = p(state, D), p(state, FF) // COLUMNS
    parts = parts_of(state, blocks)
    if team.over(state, phase, parts):
        return
    gate_up = weight(state, layer, GATE_UP)
    gate = data(gate_up) + 2 * team.share(blocks, p(state, THREADS), me) * (d // COLUMNS) * size(gate_up, 2)
    ask(gate)
    normalised(p(state, X1), norm(state, layer, FFN_NORM), d, eps_of(state), hidden)
    rounded(hidden, d, scratch)
    while True:
        part = team.take_own(state, phase, parts, parts * me // p(state, THREADS))
        if part >= parts:
            break
        for b in range(team.share(blocks, parts, part), team.share(blocks, parts, part + 1)):
            gated(state, gate_up, b, scratch, hidden)
        team.done(state, phase)
    team.wait(state, phase, parts, begins(state, me, weight(state, layer, DOWN)), AHEAD)


@function
def gated(state, buffer, b, scratch, room):
    columns = p(state, D) // COLUMNS
    w, kind, half = data(buffer), size(buffer, 2), p(state, FF) // ROWS
    q, d, s, t = activations(scratch, columns)
    for i in range(2):
        gate = group(w + (2 * b + i) * columns * kind, kind, columns, q, d, s, t)
        up = group(w + (half + 2 * b + i) * columns * kind, kind, columns, q, d, s, t)
        store(room + 64 * i, gate / (splat(f4(1)) + exponential(splat(f4(0)) - gate)) * up)
    quantise(
        room,
        1,
        p(state, ACT_Q) + COLUMNS * b,
        p(state, ACT_D) + 4 * b,
        p(state, ACT_S) + 4 * b,
        p(state, ACT_T) + 4 * b,
    )


@function
def down_phase(state, me, phase, layer):
    d = p(state, D)
    blocks = p(state, FF) // COLUMNS
    after = weight(state, layer + 1, MATRIX_QKV) if layer + 1 < p(state, LAYERS) else argument(p(state, FRAME), HEAD)
    product_phase(
        state, me, phase, weight(state, layer, DOWN), d, p(state, ACT_Q), blocks, p(state, X1), p(state, X0), after
    )


@function
def head_phase(state, me, phase, hidden, scratch):
    """Logits, and the best of each part."""
    d, frame = p(state, D), p(state, FRAME)
    parts, groups = p(state, GROUPS), (p(state, V) + ROWS - 1) // ROWS
    if team.over(state, phase, parts):
        return
    ask(begins(state, me, argument(frame, HEAD)))
    normalised(p(state, X0), data(argument(frame, NORM)), d, eps_of(state), hidden)
    rounded(hidden, d, scratch)
    logits = data(result(frame, 0))
    while True:
        part = team.take_own(state, phase, parts, parts * me // p(state, THREADS))
        if part >= parts:
            break
        begin, end = team.share(groups, parts, part), team.share(groups, parts, part + 1)
        rows_of(argument(frame, HEAD), begin, end, p(state, V), scratch, d // COLUMNS, 0, logits)
        best = best_of(logits, ROWS * begin, min(ROWS * end, p(state, V)))
        store_i32(p(state, BEST) + 8 * part, best)
        store_f32(p(state, BEST) + 8 * part + 4, load_f32(logits + 4 * best))
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
def scratch_bytes(state):
    """A thread's own memory: a hidden vector (or the heads of one key head) and rounded activations."""
    wide = max(p(state, D), (p(state, HEADS) + 1) * p(state, DIM))
    return 4 * wide + max(wide // COLUMNS * (COLUMNS + 12), 4 * chunks(state)) + 128


@function
def work(state, me):
    hidden = malloc(scratch_bytes(state))
    if hidden == 0:
        return False
    scratch = hidden + 4 * max(p(state, D), (p(state, HEADS) + 1) * p(state, DIM))
    for layer in range(p(state, LAYERS)):
        phase = PHASES_PER_LAYER * layer
        qkv_phase(state, me, phase, layer, hidden, scratch)
        attention_phase(state, me, phase + 1, layer, hidden)
        o_phase(state, me, phase + 2, layer, hidden, scratch)
        gate_up_phase(state, me, phase + 3, layer, hidden, scratch)
        down_phase(state, me, phase + 4, layer)
    head_phase(state, me, PHASES_PER_LAYER * p(state, LAYERS), hidden, scratch)
    free(hidden)
    return True
