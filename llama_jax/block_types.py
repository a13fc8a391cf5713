"""GGUF's types of quantised blocks: what a block holds, its layout in memory here, and its weights as numbers.

A block is 32 or 256 neighbouring weights of one row with float16 scales
(https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h). With q a weight's code, and sc and m the codes of its
run of 32 (q6_k: of 16):
    q4_0  d (q - 8)     q5_0  d (q - 16)     q8_0  d q, q signed
    q4_1  d q + m       q5_1  d q + m
    q4_k  d sc q - dmin m        q5_k  the same        q6_k  d sc (q - 32), sc signed

In memory 16 rows of a block are grouped, so that a row is a SIMD lane. The bits are those of the file in another order;
a weight is expanded where it is used. A group of 16 rows is, for each run j of 32 columns,
    4 vectors of 64 bytes: byte 4 r + i of vector v holds the low four bits of column 4 v + i of row r in its low half,
      those of column 16 + 4 v + i in its high half (q8_0: 8 vectors, whose byte 4 r + i is column 4 v + i)
    q5_*: one vector whose byte 4 r + i has the fifth bit of column 4 p + i as its bit p
    q6_k: two vectors; byte 4 r + i of the h-th has the upper bits of column 16 h + 4 v + i as its bits 2 v and 2 v + 1
then the codes of scales,
    q4_k, q5_k: 128 bytes, byte 16 j + r the low four bits of sc and, above them, those of m of run j; 64 bytes, byte
      16 c + r the upper two bits of sc and m of run 2 c, then those of run 2 c + 1, the first lowest
    q6_k: 256 bytes, byte 32 j + 16 h + r the sc of the h-th half of run j
and 16 float16 d, row by row, then 16 of m or dmin.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

ROWS, RUN = 16, 32  # rows of a group; columns that one vector of activations meets


class Layout(NamedTuple):
    """The parts of one row of a block: `columns` weights of `bits` bits, `codes` bytes of scales, `halves` float16
    numbers."""

    columns: int
    bits: int
    codes: int
    halves: int

    @property
    def runs(self) -> int:
        """Runs of 32 columns."""
        return self.columns // RUN

    @property
    def row(self) -> int:
        """Bytes of one row of a block, as in a GGUF file."""
        return self.columns * self.bits // 8 + self.codes + 2 * self.halves

    @property
    def group(self) -> int:
        """Bytes of the 16 rows of a block; they differ between all types."""
        return ROWS * self.row


LAYOUTS = {
    "q4_0": Layout(32, 4, 0, 1),
    "q4_1": Layout(32, 4, 0, 2),
    "q5_0": Layout(32, 5, 0, 1),
    "q5_1": Layout(32, 5, 0, 2),
    "q8_0": Layout(32, 8, 0, 1),
    "q4_k": Layout(256, 4, 12, 2),
    "q5_k": Layout(256, 5, 12, 2),
    "q6_k": Layout(256, 6, 16, 1),
}
ZERO = {"q4_0": 8, "q5_0": 16, "q6_k": 32}  # the code of a weight that is 0
HALVES = {  # of every type with float16 numbers: where they lie in a block of a file
    "q4_0": slice(2), "q4_1": slice(4), "q5_0": slice(2), "q5_1": slice(4), "q8_0": slice(2),
    "q2_k": slice(-4, None), "q3_k": slice(-2, None), "q4_k": slice(4), "q5_k": slice(4), "q6_k": slice(-2, None),
    "iq4_nl": slice(2), "iq4_xs": slice(2),
}  # fmt: skip


def halves(raw: np.ndarray, kind: str) -> np.ndarray:
    """The float16 numbers of a file's blocks [..., bytes per block]."""
    return np.ascontiguousarray(raw[..., HALVES[kind]]).view(np.float16)


def groups_of(kind: str, rows: int, columns: int) -> tuple[int, int, int]:
    """Shape of the groups of a matrix: groups of 16 rows, blocks a row, bytes of a group."""
    layout = LAYOUTS[kind]
    return -(-rows // ROWS), -(-columns // layout.columns), layout.group


# Weights --------------------------------------------------------------------------------------------------------------


def parts(data, layout: Layout):
    """(weights uint8 [... B J bits 16 4], without J where a block is one run; codes of scales uint8 [... B codes 16],
    None if there are none; scales float32 [... B 1-or-2 16]) of groups [... B S]."""
    at, runs = RUN * layout.bits // 8 * ROWS * layout.runs, (layout.runs,) if layout.runs > 1 else ()
    weights = data[..., :at].reshape(*data.shape[:-1], *runs, layout.bits, ROWS, 4)
    end, codes = at + ROWS * layout.codes, None
    if layout.codes:
        codes = data[..., at:end].reshape(*data.shape[:-1], layout.codes, ROWS)
    return weights, codes, numbers(data[..., end:].reshape(*data.shape[:-1], layout.halves, ROWS, 2))


def parts_of_rows(raw, kind: str):
    """As `parts`, without their 16, of a file's blocks [N B bytes]."""
    layout, shape = LAYOUTS[kind], raw.shape[:2]
    runs = (layout.runs,) if layout.runs > 1 else ()
    weights, codes, scales = fields(raw, kind, jnp)
    weights = weights.reshape(*shape, *runs, layout.bits, 4)
    return weights, codes if layout.codes else None, numbers(scales.reshape(*shape, layout.halves, 2))


def numbers(halves):
    """float16 as bytes [... 2] to float32 [...]."""
    return jax.lax.bitcast_convert_type(halves, jnp.float16).astype(jnp.float32)


def expand(weights, codes, halves, kind: str):
    """Weights float32 [... K] of rows: weights [... B bits 4] or [... B J bits 4], codes [... B codes] or None, halves
    [... B 1-or-2].

    A product of few bits, so exact, and one sum, as in the `gguf` library: bit for bit its numbers.
    """
    q, scale = columns(weights, kind), halves[..., :1]
    if LAYOUTS[kind].codes == 12:
        low, above = (part[..., None] for part in scale_codes(codes))
        values = scale[..., None] * low * q - halves[..., 1:, None] * above
    elif codes is not None:
        each = jax.lax.bitcast_convert_type(codes, jnp.int8).astype(jnp.float32)
        values = scale[..., None] * jnp.repeat(each, 16, axis=-1).reshape(q.shape) * (q - ZERO[kind])
    else:
        values = scale * (q - ZERO[kind] if kind in ZERO else q)
        values = values + halves[..., 1:] if LAYOUTS[kind].halves == 2 else values
    return values.reshape(*halves.shape[:-2], -1)


def columns(weights, kind: str):
    """The codes of weights in the order of their columns, as float32 [... 32]."""
    if kind == "q8_0":
        return jax.lax.bitcast_convert_type(weights.reshape(*weights.shape[:-2], -1), jnp.int8).astype(jnp.float32)
    many = LAYOUTS[kind].bits
    low = weights[..., :4, :] if many > 4 else weights
    low = low.reshape(*low.shape[:-2], -1)
    q = jnp.concatenate([low & 15, low >> 4], axis=-1)
    if many == 5:
        bits = weights[..., 4:, :] >> jnp.arange(8, dtype=jnp.uint8)[:, None] & 1
        q = q | bits.reshape(q.shape) << 4
    elif many == 6:
        bits = weights[..., 4:, None, :] >> jnp.arange(0, 8, 2, dtype=jnp.uint8)[:, None] & 3
        q = q | bits.reshape(q.shape) << 4
    return q.astype(jnp.float32)


def scale_codes(codes):
    """sc and m of each run, float32 [... 8], of 12 bytes [... 12]."""
    low, above = codes[..., :8], jnp.repeat(codes[..., 8:], 2, axis=-1)
    above = above >> jnp.tile(jnp.array([0, 4], jnp.uint8), 4)
    both = low & 15 | (above & 3) << 4, low >> 4 | (above >> 2 & 3) << 4
    return tuple(value.astype(jnp.float32) for value in both)


# Bytes of a file ------------------------------------------------------------------------------------------------------


def grouped(raw: np.ndarray, kind: str) -> np.ndarray:
    """Groups [G, B, S] of a file's rows [N, B, bytes per block]; rows that fill the last group are zero bytes."""
    layout, (n, blocks, size) = LAYOUTS[kind], raw.shape
    if size != layout.row:
        raise ValueError(f"a block of {kind} has {layout.row} bytes, not {size}")
    if n % ROWS:
        raw = np.concatenate([raw, np.zeros((-n % ROWS, blocks, size), np.uint8)])
    groups = np.empty(groups_of(kind, n, blocks * layout.columns), np.uint8)
    at = 0
    for part, unit in zip(fields(raw, kind), (np.uint32, np.uint8, np.uint16), strict=True):
        width = ROWS * part.shape[-1]
        if not width:
            continue
        rows = np.ascontiguousarray(part).view(unit).reshape(-1, ROWS, blocks, part.shape[-1] // unit().itemsize)
        groups[..., at : at + width].view(unit)[:] = rows.transpose(0, 2, 3, 1).reshape(*groups.shape[:2], -1)
        at += width
    return groups


def fields(raw, kind: str, np=np):
    """(weights in our order, codes of scales in our order, float16 numbers), bytes [N, B, …], of a file's blocks. np:
    NumPy, or `jax.numpy` inside a program."""
    layout, none = LAYOUTS[kind], raw[..., :0]
    if kind == "q6_k":
        low, above, codes, halves = np.split(raw, (128, 192, 208), axis=-1)
        low, above = low.reshape(*low.shape[:-1], 2, 2, 32), above.reshape(*above.shape[:-1], 2, 1, 32)
        q = (
            np.concatenate([low & 15, low >> 4], axis=-2)
            | (above >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3) << 4
        )
        return in_runs(q, layout, np), codes, halves
    head = 2 * layout.halves
    halves, rest = raw[..., :head], raw[..., head:]
    if layout.codes:
        codes, rest = packed_codes(rest[..., :12], np), rest[..., 12:]
        above, low = rest[..., :-128], rest[..., -128:].reshape(*raw.shape[:-1], 4, 1, 32)
        q = np.concatenate([low & 15, low >> 4], axis=-2).reshape(*raw.shape[:-1], 8, 32)
        if kind == "q5_k":
            q = q | (above[..., None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4
        return in_runs(q, layout, np), codes, halves
    if layout.bits != 5:
        return rest, none, halves
    q = np.concatenate([rest[..., 4:] & 15, rest[..., 4:] >> 4], axis=-1)
    return in_runs(q | np.unpackbits(rest[..., :4], axis=-1, bitorder="little") << 4, layout, np), none, halves


def in_runs(q, layout: Layout, np=np):
    """Codes of weights in the order of their columns as bytes [..., 4 bits J]."""
    runs = q.reshape(*q.shape[:2], layout.runs, 2, 4, 4)  # halves of 16 columns, vectors, bytes
    low = (runs[..., 0, :, :] & 15 | runs[..., 1, :, :] << 4).reshape(*runs.shape[:3], 16)
    if layout.bits == 4:
        above = low[..., :0]
    elif layout.bits == 5:
        above = np.packbits(runs.reshape(*runs.shape[:3], 8, 4) >> 4, axis=-2, bitorder="little")[..., 0, :]
    else:
        shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
        above = np.bitwise_or.reduce(runs >> 4 << shifts, axis=-2).reshape(*runs.shape[:3], 8)
    return np.concatenate([low, above], axis=-1).reshape(*q.shape[:2], -1)


def packed_codes(codes, np=np):
    """A file's 12 bytes of scale codes, whose runs 4 to 7 are scattered, in our order."""
    first, second, third = np.split(codes, 3, axis=-1)
    scale = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    minimum = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    above = scale >> 4 | minimum >> 4 << 2
    low = scale & 15 | minimum << 4
    return np.concatenate([low, above[..., ::2] | above[..., 1::2] << 4], axis=-1)
