"""A checkpoint's matrices as quantised blocks: the file's own, or quantised here, one tensor at a time.

Norms, biases and position tables stay float32.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import groupby
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax import quantise
from llama_jax.block_types import LAYOUTS
from llama_jax.checkpoint.source import Rows, Source, is_matrix

VOCABULARY = ("wte", "embed_tokens", "lm_head")


def kind_of(form: str, rows: Rows) -> str:
    return quantise.kind_of(form, rows.names[0].split(".")[-2] in VOCABULARY)


def complaint(source: Source, groups: list[Rows]) -> str | None:
    """Why the source has no blocks of its own, one sentence; None where a matrix has some that kernels multiply by."""
    kinds = stored_kinds(source, groups)
    if None in kinds:
        return f"{source.where}: it is no GGUF file, so it has no blocks of its own"
    if not set(kinds) & set(LAYOUTS):
        name = next(rows for rows in groups if is_matrix(rows)).names[0]
        known = ", ".join(map(str.upper, LAYOUTS))
        return f"{source.where}: tensor {name} is stored as {source.tensors[name].raw.kind.upper()}, not as {known}"
    return None


def requantised(source: Source, groups: list[Rows]) -> str | None:
    """Which matrices a kernel reads in other blocks than they are stored in, one sentence; None where it reads all as
    they are."""
    kinds = stored_kinds(source, groups)
    others = Counter(kind for kind in kinds if kind not in LAYOUTS)
    if not others:
        return None
    stored = "float" if None in others else " and ".join(kind.upper() for kind in sorted(others))
    which = "matrices are" if (count := sum(others.values())) == len(kinds) else f"of {len(kinds)} matrices are"
    return f"{count} {which} stored as {stored}, for which there is no kernel: they are quantised as Q8_0 here"


def stored_kinds(source: Source, groups: list[Rows]) -> list[str | None]:
    """The type of each matrix that the model multiplies by, as it is stored; None where that is no GGUF file."""
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


def read(source: Source, rows: Rows, form: str):
    """One weight in its quantised form; float32 where it is no matrix."""
    tensors = [source.tensors[name] for name in rows.names]
    if not is_matrix(rows):
        return joined([jnp.asarray(tensor.read(), jnp.float32) for tensor in tensors])
    if form == "int8":
        return joined([quantise.quantise_int8(as_rows(tensor, rows)) for tensor in tensors])
    columns, pieces = tensors[0].shape[0 if rows.transposed else 1], []
    for kind, alike in groupby(zip(kinds_of(source, rows, form), tensors, strict=True), key=itemgetter(0)):
        raw = [stored(tensor, rows, kind) for _, tensor in alike]
        pieces.append(quantise.pack(raw[0] if len(raw) == 1 else np.concatenate(raw), kind, columns))
    return pieces[0] if len(pieces) == 1 else quantise.Joined(tuple(pieces))


def joined(parts: list):
    """Weights one below the other; a single one as it is."""
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *pieces: jnp.concatenate(pieces), *parts)


def as_rows(tensor, rows: Rows) -> np.ndarray:
    """The tensor's values as [out, in]."""
    values = np.asarray(tensor.read(), np.float32)
    return values.T if rows.transposed else values


def stored(tensor, rows: Rows, kind: str) -> np.ndarray:
    """The bytes of a tensor's blocks: the file's own where they are of this kind already, as llama.cpp's quantiser
    leaves them too."""
    if tensor.raw and tensor.raw.kind == kind:
        return tensor.raw.read()
    return quantise.quantise(as_rows(tensor, rows), kind)
