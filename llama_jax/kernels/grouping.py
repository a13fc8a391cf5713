"""Rows of a file's blocks into groups of 16 (`llama_jax.block_types`): by compiled code, or in NumPy without it."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np

from llama_jax import kernels
from llama_jax.block_types import LAYOUTS, ROWS, grouped, halves
from llama_jax.plumbing.errors import UserError

WORTH = 64 << 20  # bytes of a matrix for which NumPy takes as long as the compiler


def put(groups: np.ndarray, kind: str, first: int, rows: np.ndarray, head: int = 0) -> bool:
    """Put a file's rows [N, B, bytes per block] into a matrix's zeroed groups [G, B, S], from row `first` on. Returns
    whether all their float16 numbers are finite.

    head: rows of an attention head whose rotary pairs are interleaved in the file and must be separated (N is then a
    multiple of it); 0 keeps the order.
    """
    layout, (n, blocks, size) = LAYOUTS[kind], rows.shape
    last = -(-(first + n) // ROWS)
    if size != layout.row or groups.shape[1:] != (blocks, layout.group) or last > len(groups) or (head and n % head):
        raise ValueError(f"rows {rows.shape} of {kind} do not fit groups {groups.shape} at row {first}")
    if not (groups.flags.c_contiguous and rows.flags.c_contiguous):
        raise ValueError("rows and groups must lie in one piece")
    if call := compiled(groups.nbytes > WORTH):
        where = rows.ctypes.data, groups.ctypes.data, first, n, blocks, size, layout.group, head
        return call((ctypes.c_int64 * len(where))(*where)) == 0
    before, after = first % ROWS, -(first + n) % ROWS
    ordered = np.pad(apart(rows, head), ((before, after), (0, 0), (0, 0)))
    groups[first // ROWS : last] |= grouped(ordered, kind)  # rows that are not these are zeros
    return bool(np.isfinite(halves(rows, kind)).all())


def apart(rows: np.ndarray, head: int) -> np.ndarray:
    """Rows [N, ...] with the interleaved rotary pairs of each head of this many rows separated; unchanged if head is
    0."""
    return rows.reshape(-1, head // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape) if head else rows


@functools.cache
def compiled(worth: bool) -> Callable | None:
    """The compiled function, which lets other threads run; None if there is none, or if compiling it first does not pay
    off."""
    if kernels.missing():
        return None
    from llama_jax.kernels import build  # here: it needs what may be missing

    try:
        return build.called("llama_jax_pack") if worth or build.there() else None
    except UserError:  # what cannot be compiled is told where a kernel is asked for; NumPy gives the same bytes
        return None
