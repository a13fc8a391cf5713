"""`llama_jax_gemv`: x float32 [M, K] and a weight in, x times the weight's rows float32 [M, N] out.

The weight is uint8 groups [G, K/32 or K/256, bytes of the 16 rows of a block] (`block_types`).
"""

from __future__ import annotations

from numba import types

from llama_jax.kernels.native import team
from llama_jax.kernels.native.block_types import COLUMNS, ROWS, known, runs_of
from llama_jax.kernels.native.ffi import F32, U8, argument, counts, data, executes, failure, fits, result, size
from llama_jax.kernels.native.machine import address_of, entry, function, load_f32, stack, store_f32, text
from llama_jax.kernels.native.products import activation_bytes, multiply, round_blocks

WORTH_HELP = 1 << 19  # bytes of weights times rows below which waking a helper takes longer than its share
PARTS = 4  # parts a thread
last_block = stack(4 * COLUMNS)
p = team.parameter  # short: every line reads some
helper_address = address_of("llama_jax_gemv_help")
bad_counts = text("gemv takes two operands, gives one result and has no attributes")
bad_x = text("gemv: x must be float32 [M, K], aligned to 4 bytes")
bad_weights = text(
    "gemv: the weight must be uint8 [N/16, blocks a row, bytes of 16 rows]: blocks of a type that is known"
)
bad_result = text("gemv: the result must be float32 [M, N], N within the weight's last group of 16 rows")
bad_columns = text("gemv: x and the weight have different numbers of columns")
no_memory = text("gemv: out of memory")
QUANTISE, MULTIPLY = 0, 1  # phases
X, W, OUT, M, K, N, BLOCKS, SIZE, ROUNDED, ROW_PARTS, GROUP_PARTS = range(11)  # parameters


@function
def problem(frame):
    """Address of what is wrong with the call; 0 if nothing is."""
    if not counts(frame, 2, 1, 0):
        return bad_counts()
    x, w, out = argument(frame, 0), argument(frame, 1), result(frame, 0)
    if not fits(x, F32, 2, 4):
        return bad_x()
    if not fits(w, U8, 3, 1) or not known(size(w, 2)):
        return bad_weights()
    rows = size(out, 1) if fits(out, F32, 2, 4) else -1
    groups, runs = (rows + ROWS - 1) // ROWS, (size(x, 1) + COLUMNS - 1) // COLUMNS
    if rows < 1 or size(out, 0) != size(x, 0) or size(w, 0) != groups:
        return bad_result()
    return 0 if size(w, 1) * runs_of(size(w, 2)) == runs else bad_columns()


@function
def round_rows(state, first, last):
    """Rows of x to int8; where K is no multiple of 32 the last block is filled with zeros."""
    m, k, blocks, at = p(state, M), p(state, K), p(state, BLOCKS), p(state, ROUNDED)
    whole, tail = k // COLUMNS, last_block()
    for row in range(first, last):
        x = p(state, X) + 4 * k * row
        round_blocks(x, whole, 0, blocks, at, m, row)
        if whole < blocks:
            for i in range(COLUMNS):
                column = whole * COLUMNS + i
                store_f32(tail + 4 * i, load_f32(x + 4 * column) if column < k else types.float32(0))
            round_blocks(tail, 1, whole, blocks, at, m, row)


@function
def work(state, me):
    rows, n, blocks, kind = p(state, M), p(state, N), p(state, BLOCKS), p(state, SIZE)
    groups = (n + ROWS - 1) // ROWS
    parts = p(state, ROW_PARTS)
    while True:
        part = team.take(state, QUANTISE)
        if part >= parts:
            break
        round_rows(state, team.share(rows, parts, part), team.share(rows, parts, part + 1))
        team.done(state, QUANTISE)
    team.wait(state, QUANTISE, parts, 0, 0)
    parts = p(state, GROUP_PARTS)
    while True:
        part = team.take_own(state, MULTIPLY, parts, PARTS * me)
        if part >= parts:
            break
        for g in range(team.share(groups, parts, part), team.share(groups, parts, part + 1)):
            w, to, kept = (
                p(state, W) + g * (blocks // runs_of(kind) * kind),
                p(state, OUT) + 4 * ROWS * g,
                min(n - ROWS * g, ROWS),
            )
            multiply(w, kind, blocks, p(state, ROUNDED), rows, 0, 0, to, 4 * n, kept)
        team.done(state, MULTIPLY)
    team.wait(state, MULTIPLY, parts, 0, 0)


@entry
def helper(state):
    me = team.enter(state)
    if me != 0:
        work(state, me)
    team.leave(state)
    return 0


@entry
def handler(frame):
    if not executes(frame):
        return 0
    wrong = problem(frame)
    if wrong != 0:
        return failure(frame, wrong)
    x, w, out = argument(frame, 0), argument(frame, 1), result(frame, 0)
    m, k, n, kind = size(x, 0), size(x, 1), size(out, 1), size(w, 2)
    groups, blocks = (n + ROWS - 1) // ROWS, (k + COLUMNS - 1) // COLUMNS
    state = team.assembled(2, activation_bytes(m, blocks))
    if state == 0:
        return failure(frame, no_memory())
    team.set_parameter(state, X, data(x))
    team.set_parameter(state, W, data(w))
    team.set_parameter(state, OUT, data(out))
    team.set_parameter(state, M, m)
    team.set_parameter(state, K, k)
    team.set_parameter(state, N, n)
    team.set_parameter(state, BLOCKS, blocks)
    team.set_parameter(state, SIZE, kind)
    team.set_parameter(state, ROUNDED, team.shared(state, 2))
    threads = 1 if m * groups * size(w, 1) * kind < WORTH_HELP else team.threads(frame, groups)
    team.set_parameter(state, ROW_PARTS, 1 if threads == 1 else min(PARTS * threads, m))
    team.set_parameter(state, GROUP_PARTS, 1 if threads == 1 else min(PARTS * threads, groups, team.MOST))
    team.invite(frame, state, helper_address(), threads - 1)
    work(state, 0)
    team.dismiss(state)
    return 0


ENTRIES = {"llama_jax_gemv": handler, "llama_jax_gemv_help": helper}
