"""Quantised matrices that the model's product accepts instead of an array: GGUF's blocks (`block_types`), and int8 per
row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax.axes import Array, Float, Int
from llama_jax.block_types import LAYOUTS, ROWS, RUN, expand, grouped, halves, parts, parts_of_rows
from llama_jax.linear import matmul, narrow, row_product, single_row
from llama_jax.plumbing.errors import UserError

FAINT = 1e-30  # an activation block whose largest value is below this counts as zeros: 127 / max would overflow
ROUNDED = ("q4_0", "q4_1", "q8_0")  # types of blocks that a model's weights are rounded to here
FORMS = ("gguf", *ROUNDED, "int8")  # forms of a whole model; gguf: the blocks of its own file, whatever their types
BYTES_PER_WEIGHT = {kind: layout.row / layout.columns for kind, layout in LAYOUTS.items()} | {"int8": 1.0}


def kind_of(form: str, vocabulary: bool) -> str:
    """The kind of block for a matrix: that of the form, except q8_0 for the vocabulary's matrices.

    llama.cpp's quantiser also keeps those in more bits, because every logit comes straight from them.
    """
    return "q8_0" if vocabulary and form in ROUNDED else form


# (activations float32 [... K], bytes of the blocks, (N, K)) to float32 [... N]
Product = Callable[[jax.Array, jax.Array, tuple[int, int]], jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Blocks:
    """A matrix [N, K] in GGUF's blocks, 16 rows of a block together.

    data: bytes [G, B, S], G = N/16 and B = K/columns of a block rounded up, S the bytes of a group of this kind
    (`block_types`). Missing rows are zero bytes; missing columns are quantised zeros and must meet zeros.
    product: a function that multiplies by the blocks directly, such as `kernels.gemv.product`; None: XLA, with the
    weights expanded inside the program.
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
    def kinds(self) -> tuple[str, ...]:
        return (self.kind,)

    def dequantised(self) -> Float[Array, "N K"]:
        """All weights as float32, bit for bit those of the `gguf` library."""
        weights, codes, scales = parts(jnp.asarray(self.data), LAYOUTS[self.kind])
        weights = jnp.moveaxis(weights, -2, -4 if LAYOUTS[self.kind].runs == 1 else -5)
        codes = None if codes is None else jnp.moveaxis(codes, -1, -3)
        rows = expand(weights, codes, jnp.moveaxis(scales, -1, -3), self.kind)
        return rows.reshape(-1, rows.shape[-1])[: self.shape[0], : self.shape[1]]

    def __getitem__(self, ids: Int[Array, ...]) -> Float[Array, "... K"]:
        """The rows of these numbers as float32."""
        ids = jnp.asarray(ids)
        weights, codes, scales = parts(jnp.asarray(self.data)[ids // ROWS], LAYOUTS[self.kind])
        row = (ids % ROWS)[..., None, None, None]
        each = row[..., None] if LAYOUTS[self.kind].runs == 1 else row[..., None, None]
        weights = jnp.take_along_axis(weights, each, axis=-2)[..., 0, :]
        codes = None if codes is None else jnp.take_along_axis(codes, row, axis=-1)[..., 0]
        scales = jnp.take_along_axis(scales, row, axis=-1)[..., 0]
        return expand(weights, codes, scales, self.kind)[..., : self.shape[1]]

    def matmul(self, x: Float[Array, "... K"], out_dtype) -> Float[Array, "... N"]:
        """x @ self.T."""
        if self.product is not None:
            return self.product(x.astype(jnp.float32), self.data, self.shape).astype(out_dtype)
        return matmul(x.astype(jnp.float32), self.dequantised(), out_dtype)

    def multiplied_by(self, product: Product | None) -> Blocks:
        """The same blocks with another product."""
        return replace(self, product=product)

    def split(self, height: int) -> tuple[Blocks, Blocks]:
        """The first rows, a multiple of 16, and the others; both on the host."""
        data, (n, k) = np.asarray(self.data), self.shape
        at = height // ROWS
        return replace(self, data=data[:at], shape=(height, k)), replace(self, data=data[at:], shape=(n - height, k))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Joined:
    """A matrix [N, K] stacked from several with different kinds of blocks, as a file's queries, keys and values may
    have."""

    pieces: tuple[Blocks, ...]

    dtype = np.dtype(np.float32)
    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        return sum(piece.shape[0] for piece in self.pieces), self.pieces[0].shape[1]

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(piece.kind for piece in self.pieces)

    def dequantised(self) -> Float[Array, "N K"]:
        """All weights as float32."""
        return jnp.concatenate([piece.dequantised() for piece in self.pieces])

    def matmul(self, x: Float[Array, "... K"], out_dtype) -> Float[Array, "... N"]:
        """x @ self.T."""
        return jnp.concatenate([piece.matmul(x, out_dtype) for piece in self.pieces], axis=-1)

    def multiplied_by(self, product: Product | None) -> Joined:
        """The same blocks with another product."""
        return Joined(tuple(piece.multiplied_by(product) for piece in self.pieces))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Table:
    """A matrix [N, K] for looking up rows only, in a file's own blocks. The bytes may be those of the mapped file, so
    only the rows that are used come into memory.

    data: bytes [N, B, S], S those of a block (`Layout.row`).
    """

    data: jax.Array
    kind: str = field(metadata=dict(static=True))

    dtype = np.dtype(np.float32)
    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[0], self.data.shape[1] * LAYOUTS[self.kind].columns

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def kinds(self) -> tuple[str, ...]:
        return (self.kind,)

    def dequantised(self) -> Float[Array, "N K"]:
        """All weights as float32."""
        return self[jnp.arange(self.shape[0])]

    def __getitem__(self, ids: Int[Array, ...]) -> Float[Array, "... K"]:
        """The rows of these numbers as float32, bit for bit those of the `gguf` library."""
        ids = jnp.asarray(ids)
        rows = jnp.asarray(self.data)[ids.reshape(-1)]
        return expand(*parts_of_rows(rows, self.kind), self.kind).reshape(*ids.shape, -1)

    def multiplied_by(self, product: Product | None) -> Table:
        """Unchanged, because nothing is multiplied by it."""
        return self


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Int8:
    """A matrix [N, K] as int8 with one scale per row (output channel): the weight is value * scale."""

    values: jax.Array  # int8 [N K]
    scales: jax.Array  # float32 [N]

    dtype = np.dtype(np.float32)
    ndim = 2
    kinds = ("int8",)

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
    return isinstance(weight, (Blocks, Joined, Table, Int8))


# Bytes of a file and back, in NumPy -----------------------------------------------------------------------------------


def pack(raw: np.ndarray, kind: str, columns: int | None = None) -> Blocks:
    """Blocks of a GGUF tensor's bytes [N, B, bytes per block]. Concatenate the rows of several tensors before, not
    after: a group of 16 may hold the end of one and the beginning of the next. columns: K, if 32 does not divide it."""
    shape = raw.shape[0], columns or LAYOUTS[kind].columns * raw.shape[1]
    return Blocks(jnp.asarray(grouped(raw, kind)), kind, shape)


def quantise(values: np.ndarray, kind: str) -> np.ndarray:
    """GGUF bytes [N, K/32, bytes per block] of a float matrix [N, K], rounded by the `gguf` library as llama.cpp does.

    Columns are padded with zeros to a multiple of 32. Raises UserError for values too large for float16 scales.
    """
    from gguf import GGMLQuantizationType, quantize  # here: a machine that only measures speed may lack the library

    values = np.asarray(values, np.float32)
    if values.shape[1] % RUN:
        values = np.pad(values, ((0, 0), (0, -values.shape[1] % RUN)))
    # a block of zeros, or one too faint for its scale, divides by zero and is zero again
    with np.errstate(all="ignore"):
        raw = quantize(np.ascontiguousarray(values), GGMLQuantizationType[kind.upper()]).reshape(
            len(values), -1, LAYOUTS[kind].row
        )
    if not np.isfinite(halves(raw, kind)).all():
        raise UserError(f"A weight is not finite, or too large for the float16 scale of {kind}; load it as float32.")
    return raw


def quantise_int8(values: np.ndarray) -> Int8:
    """A float matrix [N, K] as int8: each row divided by its largest absolute value over 127. Raises UserError as
    `quantise`."""
    values = np.asarray(values, np.float32)
    scales = np.max(np.abs(values), axis=1) / np.float32(127)
    if not np.isfinite(scales).all():
        raise UserError("A weight is not finite; load it as float32.")
    rounded = np.rint(values / np.where(scales > 0, scales, 1)[:, None]).astype(np.int8)
    return Int8(jnp.asarray(rounded), jnp.asarray(scales))


def from_float(values: np.ndarray, kind: str) -> Blocks | Int8:
    """A float matrix [N, K] in a kind of `ROUNDED` or as "int8". Raises UserError as `quantise`."""
    return quantise_int8(values) if kind == "int8" else pack(quantise(values, kind), kind, values.shape[1])
