"""A GGUF tensor as it lies in its file: rows of blocks, mapped some at a time, so that no more of a file is in memory
than what is being read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm, prod
from pathlib import Path

import jax
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from llama_jax.block_types import HALVES, ROWS, halves
from llama_jax.checkpoint.header import Place
from llama_jax.checkpoint.source import check_finite
from llama_jax.kernels.grouping import apart
from llama_jax.plumbing.errors import UserError

FLOATS = {"F32": np.dtype("float32"), "F16": np.dtype("float16"), "BF16": jax.numpy.dtype("bfloat16")}
LARGEST_EXPONENT = 252  # of an MXFP4 block, its first byte: 12 times 2^(e - 128) is the largest weight
SUPPORTED = [GGMLQuantizationType[kind] for kind in (*FLOATS, *map(str.upper, HALVES), "MXFP4")]
PIECE = 2 << 20  # weights that are there in float32 at a time
MAPPED = 8 << 20  # weights whose blocks are mapped at a time: a call that is long enough to run beside other threads


@dataclass(frozen=True)
class Raw:
    """A tensor's rows in the order of the file. head: rows of an attention head whose rotary pairs lie interleaved
    there; 0 if they lie as the model has them."""

    path: Path
    name: str
    place: Place
    head: int = 0

    @property
    def kind(self) -> str:
        """Its type: "q4_0", "q6_k", "f16" …"""
        return GGMLQuantizationType(self.place.kind).name.lower()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, blocks a row, bytes per block; a block has 32 weights, of a type in "_k" or "_xs" 256, of a float 1."""
        height, width = self.place.shape[0], GGML_QUANT_SIZES[GGMLQuantizationType(self.place.kind)][1]
        return height, self.place.size // height // width, width

    def pieces(self, mapped: bool = False) -> Iterator[tuple[int, int]]:
        """(first row, one after the last) of parts of about PIECE weights, or MAPPED ones, all heads whole and, but for
        the last, all groups of 16 rows."""
        height, *columns = self.place.shape
        unit = lcm(ROWS, self.head or 1)
        step = unit * max((MAPPED if mapped else PIECE) // prod(columns) // unit, 1)
        return ((first, min(first + step, height)) for first in range(0, height, step))

    def rows(self, first: int = 0, last: int | None = None) -> np.ndarray:
        """The bytes of rows first … last - 1 in the order of the file, uint8 [rows, blocks, bytes per block]. They are
        mapped: what nobody holds any more takes no memory. Raises UserError if the file has become shorter or is
        gone."""
        height, *block = self.shape
        count, width = (height if last is None else last) - first, self.place.size // height
        try:
            return np.memmap(self.path, np.uint8, "r", self.place.offset + first * width, (count, *block))
        except (OSError, ValueError):  # too short to be mapped
            raise UserError(
                f"{self.path}: tensor {self.name} is gone; the file has changed since it was opened."
            ) from None

    def checked(self, first: int = 0, last: int | None = None) -> np.ndarray:
        """As `rows`. Raises UserError too where a number among them is infinite or none: a weight, or the scale of a
        block of weights, which makes all the others finite."""
        rows, kind = self.rows(first, last), self.kind
        if dtype := FLOATS.get(kind.upper()):
            numbers = rows.view(dtype)
        elif kind in HALVES:
            numbers = halves(rows, kind)
        else:
            numbers = np.where(rows[..., 0] > LARGEST_EXPONENT, np.float32(np.inf), 0)
        check_finite(numbers, str(self.path), self.name)
        return rows

    def read(self) -> np.ndarray:
        """All rows in the model's order. Raises UserError as `checked`."""
        return apart(self.checked(), self.head)

    def values(self, first: int = 0, last: int | None = None) -> np.ndarray:
        """Rows first … last - 1 as float32 in the model's order; both at the end of a head. Raises UserError as
        `checked`."""
        rows, kind = self.checked(first, last), GGMLQuantizationType(self.place.kind)
        if dtype := FLOATS.get(kind.name):
            numbers = rows.view(dtype).astype(np.float32, copy=False)
        else:
            numbers = dequantize(rows.reshape(len(rows), -1), kind)
        return apart(numbers.reshape(len(rows), *self.place.shape[1:]), self.head)
