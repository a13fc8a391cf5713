"""A checkpoint's matrices as quantised blocks: the file's own, or quantised here, some rows at a time.

Norms, biases and position tables stay float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax import quantise
from llama_jax.block_types import LAYOUTS, groups_of
from llama_jax.checkpoint.source import TABLES, Rows, Source, Tensor, damaged, is_matrix
from llama_jax.kernels import grouping
from llama_jax.kernels.packed import UNIT, aligned

VOCABULARY = ("wte", "embed_tokens", "lm_head")


def kind_of(form: str, rows: Rows) -> str:
    return quantise.kind_of(form, rows.names[0].split(".")[-2] in VOCABULARY)


def complaint(source: Source, groups: list[Rows]) -> str | None:
    """Why the source has no blocks of its own, one sentence; None if a matrix has some that kernels multiply by."""
    kinds = stored_kinds(source, groups)
    if None in kinds:
        return f"{source.where}: it is no GGUF file, so it has no blocks of its own"
    if not set(kinds) & set(LAYOUTS):
        name = next(rows for rows in groups if is_matrix(rows)).names[0]
        known = ", ".join(map(str.upper, LAYOUTS))
        return f"{source.where}: tensor {name} is stored as {source.tensors[name].raw.kind.upper()}, not as {known}"
    return None


def requantised(source: Source, groups: list[Rows]) -> str | None:
    """Which matrices a kernel reads in other blocks than they are stored in, one sentence; None if it reads all as
    they are."""
    matrices = [source.tensors[name] for rows in groups if is_matrix(rows) for name in rows.names]
    others = [tensor for tensor in matrices if not (tensor.raw and tensor.raw.kind in LAYOUTS)]
    if not others:
        return None
    raws = [tensor.raw for tensor in others if tensor.raw]
    stored = " and ".join(sorted({raw.kind.upper() for raw in raws})) or "float"
    which = "matrices are" if len(others) == len(matrices) else f"of {len(matrices)} matrices are"
    line = f"{len(others)} {which} stored as {stored}, for which there is no kernel: they are quantised as Q8_0 here"
    if not raws:
        return line
    made = quantise.BYTES_PER_WEIGHT["q8_0"] * sum(math.prod(tensor.shape) for tensor in others)
    return f"{line}, {made / sum(raw.place.size for raw in raws):.2f} times the bytes"


def stored_kinds(source: Source, groups: list[Rows]) -> list[str | None]:
    """The type of each matrix that the model multiplies by, as it is stored; None if that is no GGUF file."""
    names = [name for rows in groups if is_matrix(rows) for name in rows.names]
    return [raw.kind if (raw := source.tensors[name].raw) else None for name in names]


def kinds_of(source: Source, rows: Rows, form: str) -> list[str]:
    """The kind of each of a matrix's tensors in this form."""
    if form != "gguf":
        return [kind_of(form, rows)] * len(rows.names)
    return [kind if kind in LAYOUTS else "q8_0" for kind in stored_kinds(source, [rows])]


def bytes_of(source: Source, rows: Rows, form: str) -> float:
    """What a weight will occupy."""
    numbers = [math.prod(source.tensors[name].shape) for name in rows.names]
    if not is_matrix(rows):
        return 4 * sum(numbers)
    kinds = kinds_of(source, rows, form)
    return sum(count * quantise.BYTES_PER_WEIGHT[kind] for count, kind in zip(numbers, kinds, strict=True))


class Stack(NamedTuple):
    """Tensors of one kind, one below the other: a matrix [height, columns] of its own, or a piece of one."""

    kind: str
    tensors: list[Tensor]
    height: int
    columns: int

    @property
    def groups(self) -> tuple[int, int, int]:
        """Shape of its `quantise.Blocks.data`."""
        return groups_of(self.kind, self.height, self.columns)

    @property
    def room(self) -> int:
        """Bytes that it takes, up to where the next may begin."""
        return -(-math.prod(self.groups) // UNIT) * UNIT


def stacks(source: Source, rows: Rows, form: str) -> list[Stack]:
    """The pieces that a weight is made of; none where it is no matrix of blocks, or a table."""
    if form == "int8" or not is_matrix(rows) or table(source, rows, form):
        return []
    out, into = (1, 0) if rows.transposed else (0, 1)
    pieces, tensors = [], [source.tensors[name] for name in rows.names]
    for kind, alike in groupby(zip(kinds_of(source, rows, form), tensors, strict=True), key=itemgetter(0)):
        own = [tensor for _, tensor in alike]
        pieces.append(Stack(kind, own, sum(tensor.shape[out] for tensor in own), own[0].shape[into]))
    return pieces


def table(source: Source, rows: Rows, form: str) -> Tensor | None:
    """The embedding where a kernel can look rows up in the file's own blocks and no head multiplies by them."""
    if form != "gguf" or source.config.tie_word_embeddings or rows.names[0] != TABLES[source.config.model_type]:
        return None
    tensor = source.tensors[rows.names[0]]
    return tensor if tensor.raw and tensor.raw.kind in LAYOUTS else None


def room(source: Source, rows: Rows, form: str) -> int:
    """Bytes of memory that `read` puts a weight's blocks into."""
    return sum(stack.room for stack in stacks(source, rows, form))


def read(source: Source, rows: Rows, form: str, memory: np.ndarray | None = None):
    """One weight in its quantised form; float32 where it is no matrix. memory: `room` zero bytes at a multiple of UNIT
    that its blocks are put into; by default its own."""
    tensors = [source.tensors[name] for name in rows.names]
    if not is_matrix(rows):
        # by NumPy, for which JAX would compile programs; a copy, since a file may be mapped
        return jax.device_put(np.concatenate([np.asarray(tensor.read(), np.float32) for tensor in tensors]))
    if tensor := table(source, rows, form):
        for piece in tensor.raw.pieces():  # which leave memory again, unlike those that are looked up
            tensor.raw.checked(*piece)
        return quantise.Table(jax.device_put(tensor.raw.rows().view(np.ndarray)), tensor.raw.kind)
    if form == "int8":
        return joined([quantise.quantise_int8(as_rows(tensor, rows)) for tensor in tensors])
    memory, pieces = aligned(room(source, rows, form)) if memory is None else memory, []
    for stack in stacks(source, rows, form):
        groups, memory = memory[: math.prod(stack.groups)].reshape(stack.groups), memory[stack.room :]
        fill(groups, stack, rows, source.where)
        pieces.append(quantise.Blocks(jax.device_put(groups), stack.kind, (stack.height, stack.columns)))
    return pieces[0] if len(pieces) == 1 else quantise.Joined(tuple(pieces))


def fill(groups: np.ndarray, stack: Stack, rows: Rows, where: str) -> None:
    """Put a stack's blocks into its groups, some rows at a time. Raises UserError for a scale that is none."""
    first = 0
    for tensor in stack.tensors:
        for blocks, head in stored(tensor, rows, stack.kind):
            if not grouping.put(groups, stack.kind, first, blocks, head):
                raise damaged(where, tensor.raw.name if tensor.raw else rows.names[0])
            first += len(blocks)


def joined(parts: list):
    """Weights one below the other; a single one as it is."""
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *pieces: jnp.concatenate(pieces), *parts)


def as_rows(tensor, rows: Rows) -> np.ndarray:
    """The tensor's values as [out, in]."""
    values = np.asarray(tensor.read(), np.float32)
    return values.T if rows.transposed else values


def stored(tensor: Tensor, rows: Rows, kind: str) -> Iterator[tuple[np.ndarray, int]]:
    """A tensor's blocks some rows at a time, and how many rows a head has whose rotary pairs are still interleaved: the
    file's own blocks where they are of this kind already, as llama.cpp's quantiser leaves them too."""
    if (raw := tensor.raw) and raw.kind == kind:
        compiled = grouping.compiled(False) is not None  # which takes nothing beside what is mapped
        yield from ((raw.rows(*piece), raw.head) for piece in raw.pieces(mapped=compiled))
    elif raw:
        yield from ((quantise.quantise(raw.values(*piece), kind), 0) for piece in raw.pieces())
    else:
        yield quantise.quantise(as_rows(tensor, rows), kind), 0
