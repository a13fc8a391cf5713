"""Shared by several phases of a step: norms of rows, which parts each thread takes, where it begins to read."""

from __future__ import annotations

from numba import types

from llama_jax.kernels.native import layout, team
from llama_jax.kernels.native.block_types import COLUMNS
from llama_jax.kernels.native.ffi import DESCRIPTION, data, size
from llama_jax.kernels.native.lanes import fma, load, splat, store, total
from llama_jax.kernels.native.layout import p, rows_of
from llama_jax.kernels.native.machine import function, square_root
from llama_jax.kernels.native.octets import prefetch
from llama_jax.kernels.native.products import round_blocks

f4 = types.float32
FIRST = 32  # lines of 64 bytes that a thread asks for before it computes something short


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
def group_at(buffer, group):
    """The weight in which a group of rows lies, counted from the first of some that stand one below the other; its
    number there."""
    while group >= size(buffer, 0):
        group -= size(buffer, 0)
        buffer += DESCRIPTION
    return buffer, group


@function
def begins(state, me, buffer, groups):
    """Where in so many groups, of a weight or of some, the me-th thread begins to read."""
    buffer, group = group_at(buffer, team.share(groups, p(state, layout.THREADS), me))
    return data(buffer) + group * size(buffer, 1) * size(buffer, 2)


@function
def ask(address):
    """Keep memory busy while this thread computes something short."""
    for line in range(0, 64 * FIRST, 64):
        prefetch(address + line)


@function
def parts_of(state, groups):
    return min(groups, p(state, layout.TEAM))


@function
def first_part(state, me, parts):
    """The part that is meant for the me-th thread before others."""
    return parts * me // p(state, layout.THREADS)
