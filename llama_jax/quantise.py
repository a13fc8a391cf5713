"""Quantised matrices that the model's one product takes in place of an array: GGUF's blocks, and int8 a row.

A block is 32 neighbouring weights of one row with a float16 scale d: q4_0 is d (q - 8), q4_1 is d q + m, q8_0 is d q
(https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h). In memory 16 rows of a block column stand together, so
that a row is a SIMD lane; the bytes are those of the file, in another order, and a weight is expanded where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax.axes import Array, Float, Int
from llama_jax.linear import matmul, narrow, row_product, single_row
from llama_jax.plumbing.errors import UserError

ROWS, COLUMNS = 16, 32  # sizes of one group of blocks
FAINT = 1e-30  # an activation block whose largest value is below this counts as zeros: 127 / max would overflow


class Layout(NamedTuple):
    """What one row of a block is made of: `scales` float16 numbers (d, then m), then `vectors` times four bytes of
    weights."""

    scales: int
    vectors: int

    @property
    def row(self) -> int:
        """Bytes of one row of a block, as in a GGUF file."""
        return 2 * self.scales + 4 * self.vectors

    @property
    def group(self) -> int:
        """Bytes of the 16 rows of a block."""
        return ROWS * self.row


LAYOUTS = {"q4_0": Layout(1, 4), "q4_1": Layout(2, 4), "q8_0": Layout(1, 8)}
FORMS = ("gguf", *LAYOUTS, "int8")  # forms of a whole model; gguf: the blocks of its own file, whatever their kinds
BYTES_PER_WEIGHT = {kind: layout.row / COLUMNS for kind, layout in LAYOUTS.items()} | {"int8": 1.0}


def kind_of(form: str, vocabulary: bool) -> str:
    """The kind of block that a matrix gets: that of the form, but q8_0 for the vocabulary's matrices, which a head
    reads too.

    llama.cpp's own quantiser keeps them in more bits as well, since every logit comes straight from them.
    """
    return "q8_0" if vocabulary and form in LAYOUTS else form


# (activations float32 [... K], bytes of the blocks, (N, K)) to float32 [... N]
Product = Callable[[jax.Array, jax.Array, tuple[int, int]], jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Blocks:
    """A matrix [N, K] in GGUF's blocks, 16 rows of a block together.

    data: bytes [G, K/32, S], G = N/16 and K/32 rounded up; rows that are not there are zero bytes, columns that are not
    there are quantised zeros and must meet zeros. S = 288 (q4_0), 320 (q4_1) or 544 (q8_0), with r the row of the
    group:
        q4_*  4 vectors of 64 bytes; byte 4 r + i of vector v has column 4 v + i in its low half, 16 + 4 v + i in its
              high half
        q8_0  8 vectors of 64 bytes; byte 4 r + i of vector v is column 4 v + i, signed
        then 16 float16 d, row by row, and for q4_1 16 float16 m.
    product: what multiplies on the blocks themselves, such as `kernels.gemv.product`; None: XLA, with the weights
    expanded inside the program.
    """

    data: jax.Array
    kind: str = field(metadata=dict(static=True))
    shape: tuple[int, int] = field(metadata=dict(static=True))
    product: Product | None = field(default=None, metadata=dict(static=True))

    dtype = np.dtype(np.float32)  # what it computes in
    ndim = 2

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def group(self) -> int:
        """Bytes of one group: 16 rows of a block column."""
        return LAYOUTS[self.kind].group

    def dequantised(self) -> Float[Array, "N K"]:
        """All weights as float32, bit for bit those of the `gguf` library."""
        vectors, scales = parts(jnp.asarray(self.data), LAYOUTS[self.kind])
        rows = expand(jnp.moveaxis(vectors, -2, -4), jnp.moveaxis(scales, -1, -3), self.kind)
        return rows.reshape(-1, rows.shape[-1])[: self.shape[0], : self.shape[1]]

    def __getitem__(self, ids: Int[Array, ...]) -> Float[Array, "... K"]:
        """The rows of these numbers as float32."""
        ids = jnp.asarray(ids)
        vectors, scales = parts(jnp.asarray(self.data)[ids // ROWS], LAYOUTS[self.kind])
        row = (ids % ROWS)[..., None, None, None]
        vectors = jnp.take_along_axis(vectors, row[..., None], axis=-2)[..., 0, :]
        scales = jnp.take_along_axis(scales, row, axis=-1)[..., 0]
        return expand(vectors, scales, self.kind)[..., : self.shape[1]]

    def matmul(self, x: Float[Array, "... K"], out_dtype) -> Float[Array, "... N"]:
        """x @ self.T."""
        if self.product is not None:
            return self.product(x.astype(jnp.float32), self.data, self.shape).astype(out_dtype)
        return matmul(x.astype(jnp.float32), self.dequantised(), out_dtype)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Int8:
    """A matrix [N, K] as int8 with one scale a row (output channel): the weight is value * scale."""

    values: jax.Array  # int8 [N K]
    scales: jax.Array  # float32 [N]

    dtype = np.dtype(np.float32)
    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[-2:]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scales.nbytes

    def dequantised(self) -> Float[Array, "N K"]:
        """All weights as float32."""
        return self.values.astype(jnp.float32) * self.scales[:, None]

    def __getitem__(self, ids: Int[Array, ...]) -> Float[Array, "... K"]:
        """The rows of these numbers as float32."""
        return jnp.asarray(self.values)[ids].astype(jnp.float32) * jnp.asarray(self.scales)[ids][..., None]

    def matmul(self, x: Float[Array, "... K"], out_dtype) -> Float[Array, "... N"]:
        """x @ self.T: the scale of a row is applied to its output, not to its weights."""
        if narrow(self.values) and single_row(x):
            return (row_product(x, self.values) * self.scales).astype(out_dtype)
        return (matmul(x.astype(jnp.float32), self.values.astype(jnp.float32), jnp.float32) * self.scales).astype(
            out_dtype
        )


def is_quantised(weight) -> bool:
    """Whether a weight is one of this module's; for `jax.tree` as `is_leaf`."""
    return isinstance(weight, (Blocks, Int8))


def parts(data, layout: Layout):
    """(vectors uint8 [... K/32 V 16 4], scales float32 [... K/32 1-or-2 16]) of bytes [... K/32 S]."""
    split = layout.vectors * 4 * ROWS
    vectors = data[..., :split].reshape(*data.shape[:-1], layout.vectors, ROWS, 4)
    scales = data[..., split:].reshape(*data.shape[:-1], layout.scales, ROWS, 2)
    return vectors, jax.lax.bitcast_convert_type(scales, jnp.float16).astype(jnp.float32)


def expand(vectors, scales, kind: str):
    """Weights float32 [... K] of vectors [... K/32 V 4] and scales [... K/32 1-or-2]: a product of few bits, so exact,
    and one sum."""
    columns = vectors.reshape(*vectors.shape[:-2], -1)
    if kind == "q8_0":
        q = jax.lax.bitcast_convert_type(columns, jnp.int8).astype(jnp.float32)
    else:
        q = jnp.concatenate([columns & 15, columns >> 4], axis=-1).astype(jnp.float32)
    weights = scales[..., :1] * (q - 8 if kind == "q4_0" else q)
    weights = weights + scales[..., 1:] if kind == "q4_1" else weights
    return weights.reshape(*weights.shape[:-2], -1)


# Bytes of a file and back, in NumPy -----------------------------------------------------------------------------------


def pack(raw: np.ndarray, kind: str, columns: int | None = None) -> Blocks:
    """Blocks of a GGUF tensor's bytes [N, K/32, bytes a block]. Rows of several tensors are concatenated before, not
    after: a group of 16 may hold the end of one and the beginning of the next. columns: K, where 32 does not divide
    it."""
    data = permuted(raw, LAYOUTS[kind])
    return Blocks(jnp.asarray(data), kind, (raw.shape[0], columns or COLUMNS * raw.shape[1]))


def permuted(raw: np.ndarray, layout: Layout) -> np.ndarray:
    """The bytes [G, K/32, S] of rows [N, K/32, bytes a block]."""
    n, blocks, size = raw.shape
    if size != layout.row:
        raise ValueError(f"a block has {size} bytes, not {layout.row}")
    if n % ROWS:
        raw = np.concatenate([raw, np.zeros((-n % ROWS, blocks, size), np.uint8)])
    rows, head = raw.reshape(-1, ROWS, blocks, size), 2 * layout.scales
    scales = np.ascontiguousarray(rows[..., :head]).view(np.uint16).transpose(0, 2, 3, 1)
    vectors = np.ascontiguousarray(rows[..., head:]).view(np.uint32).transpose(0, 2, 3, 1)
    codes = np.empty((len(rows), blocks, layout.group), np.uint8)
    codes[..., : 4 * ROWS * layout.vectors].view(np.uint32)[:] = vectors.reshape(len(rows), blocks, -1)
    codes[..., 4 * ROWS * layout.vectors :].view(np.uint16)[:] = scales.reshape(len(rows), blocks, -1)
    return codes


def quantise(values: np.ndarray, kind: str) -> np.ndarray:
    """GGUF bytes [N, K/32, bytes a block] of a float matrix [N, K], by the `gguf` library's own rounding, which is
    llama.cpp's.

    Columns up to the next multiple of 32 are filled with zeros. Raises UserError for values that float16 scales cannot
    hold.
    """
    from gguf import GGMLQuantizationType, quantize  # here: a machine that only measures speed may lack the library

    values = np.asarray(values, np.float32)
    if values.shape[1] % COLUMNS:
        values = np.pad(values, ((0, 0), (0, -values.shape[1] % COLUMNS)))
    # a block of zeros, or one too faint for its scale, divides by zero and is zero again
    with np.errstate(all="ignore"):
        raw = quantize(np.ascontiguousarray(values), GGMLQuantizationType[kind.upper()]).reshape(
            len(values), -1, LAYOUTS[kind].row
        )
    if not np.isfinite(np.ascontiguousarray(raw[..., : 2 * LAYOUTS[kind].scales]).view(np.float16)).all():
        raise UserError(
            f"A weight is no finite number, or too large for the float16 scale of {kind}; load it as float32."
        )
    return raw


def quantise_int8(values: np.ndarray) -> Int8:
    """A float matrix [N, K] as int8: each row divided by its largest absolute value over 127. Raises UserError as
    `quantise`."""
    values = np.asarray(values, np.float32)
    scales = np.max(np.abs(values), axis=1) / np.float32(127)
    if not np.isfinite(scales).all():
        raise UserError("A weight is no finite number; load it as float32.")
    rounded = np.rint(values / np.where(scales > 0, scales, 1)[:, None]).astype(np.int8)
    return Int8(jnp.asarray(rounded), jnp.asarray(scales))


def from_float(values: np.ndarray, kind: str) -> Blocks | Int8:
    """A float matrix [N, K] in a kind of `LAYOUTS` or as "int8". Raises UserError as `quantise`."""
    return quantise_int8(values) if kind == "int8" else pack(quantise(values, kind), kind, values.shape[1])
