"""The head of a step, shared by a team: logits of the rows that are wanted, and the best token of each."""

from __future__ import annotations

from llama_jax.kernels.native import layout, team
from llama_jax.kernels.native.block_types import COLUMNS, ROWS
from llama_jax.kernels.native.ffi import argument, data, result, size
from llama_jax.kernels.native.lanes import largest, load
from llama_jax.kernels.native.layout import p, rows_of
from llama_jax.kernels.native.machine import function, load_f32, store_f32, store_i32
from llama_jax.kernels.native.operands import HEAD, NORM
from llama_jax.kernels.native.products import multiply, round_blocks
from llama_jax.kernels.native.rows import ask, begins, first_part, normalised


@function
def head_phase(state, me, phase, hidden, scratch):
    """Logits of the rows that are wanted, all or the last of each sequence, and the best of each part."""
    d, frame, wanted = p(state, layout.D), p(state, layout.FRAME), p(state, layout.WANTED)
    parts, v = p(state, layout.GROUPS), p(state, layout.V)
    if wanted == 0 or team.over(state, phase, parts):
        return
    buffer, blocks, groups = argument(frame, HEAD), d // COLUMNS, (v + ROWS - 1) // ROWS
    ask(begins(state, me, buffer, groups))
    each = rows_of(state) // wanted
    for row in range(wanted):
        x = p(state, layout.X0) + 4 * d * (each * (row + 1) - 1)
        normalised(x, data(argument(frame, NORM)), d, layout.eps_of(state), hidden)
        round_blocks(hidden, blocks, 0, blocks, scratch, wanted, row)
    logits, w, kind, far = data(result(frame, 0)), data(buffer), size(buffer, 2), size(buffer, 1) * size(buffer, 2)
    while True:
        part = team.take_own(state, phase, parts, first_part(state, me, parts))
        if part >= parts:
            break
        begin, end = team.share(groups, parts, part), team.share(groups, parts, part + 1)
        for g in range(begin, end):
            out, kept = logits + 4 * ROWS * g, min(v - ROWS * g, ROWS)
            multiply(w + g * far, kind, blocks, scratch, wanted, 0, 0, out, 4 * v, kept)
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
