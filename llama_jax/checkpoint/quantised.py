"""A checkpoint's matrices as quantised blocks: the file's own, or quantised here, one tensor at a time.

Norms, biases and position tables stay float32.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax import quantise
from llama_jax.checkpoint.source import Rows, Source, is_matrix
from llama_jax.quantise import LAYOUTS

VOCABULARY = ("wte", "embed_tokens", "lm_head")


def kind_of(form: str, rows: Rows) -> str:
    return quantise.kind_of(form, rows.names[0].split(".")[-2] in VOCABULARY)


def complaint(source: Source, groups: list[Rows]) -> str | None:
    """Why the source's own bytes cannot be the weights: the tensor and its type in one sentence; None where they
    can."""
    for rows in filter(is_matrix, groups):
        kinds = []
        for name in rows.names:
            if (raw := source.tensors[name].raw) is None:
                return f"{source.where}: it is no GGUF file, so it has no blocks of its own"
            if raw.kind not in LAYOUTS:
                return (
                    f"{source.where}: tensor {name} is stored as {raw.kind.upper()}, not as"
                    f" {', '.join(map(str.upper, LAYOUTS))}"
                )
            kinds.append(raw.kind)
        if len(set(kinds)) > 1:
            stored = ", ".join(f"{name} {kind.upper()}" for name, kind in zip(rows.names, kinds, strict=True))
            return f"{source.where}: tensors that are one matrix here are stored in different types ({stored})"
    return None


def bytes_of(source: Source, rows: Rows, form: str) -> float:
    """What a weight will occupy."""
    numbers = sum(math.prod(source.tensors[name].shape) for name in rows.names)
    if not is_matrix(rows):
        return 4 * numbers
    kind = source.tensors[rows.names[0]].raw.kind if form == "gguf" else kind_of(form, rows)
    return numbers * quantise.BYTES_PER_WEIGHT[kind]


def read(source: Source, rows: Rows, form: str):
    """One weight in its quantised form; float32 where it is no matrix."""
    tensors = [source.tensors[name] for name in rows.names]
    if not is_matrix(rows):
        return joined([jnp.asarray(tensor.read(), jnp.float32) for tensor in tensors])
    if form == "int8":
        return joined([quantise.quantise_int8(as_rows(tensor, rows)) for tensor in tensors])
    kind = tensors[0].raw.kind if form == "gguf" else kind_of(form, rows)
    raw = [stored(tensor, rows, kind) for tensor in tensors]
    columns = tensors[0].shape[0 if rows.transposed else 1]
    return quantise.pack(raw[0] if len(raw) == 1 else np.concatenate(raw), kind, columns)


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
