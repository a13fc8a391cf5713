"""Random weights as a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) at a preset's real shapes,
which llama.cpp and its relatives read too: for measuring speed, not for text.

Matrices get the file's type, except the vocabulary's, which are Q8_0; llama.cpp's quantiser also keeps them in more
bits. The tokenizer is the packaged model's, padded with made-up tokens for a larger vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

import gguf
import numpy as np

from llama_jax.block_types import RUN
from llama_jax.checkpoint import quantised, random
from llama_jax.checkpoint.gguf import (
    GLOBAL_NAMES,
    LAYER_NAMES,
    architecture_keys,
    packaged,
    rotated_heads,
    weights_hash,
)
from llama_jax.checkpoint.header import read
from llama_jax.checkpoint.source import Source
from llama_jax.config import ModelConfig
from llama_jax.plumbing import files
from llama_jax.plumbing.errors import UserError, near
from llama_jax.quantise import BYTES_PER_WEIGHT, ROUNDED, quantise
from llama_jax.rope import scale

TYPES = ROUNDED
FAMILIES = ("llama", "qwen2")
UNUSED = 5  # GGUF's type of a token that stands for no text
FACTORS = "rope_freqs.weight"
STEMS = {full: short for short, full in (LAYER_NAMES | GLOBAL_NAMES).items()}


@dataclass(frozen=True)
class Made:
    """A written file. bytes, sha256: of the whole file."""

    out: Path
    bytes: int
    type: str
    model: str
    seed: int
    sha256: str


def write(model: str, kind: str, out: Path) -> Made:
    """Write `random:PRESET`, with the fields and seed that it names, in a type of TYPES.

    One tensor at a time is in memory. Raises UserError, and leaves no file, for another model or type, shapes that
    blocks of 32 or llama.cpp cannot hold, and a place that cannot be written.
    """
    if kind not in TYPES:
        raise UserError(f"--type is {kind[:60]!r}; it must be {', '.join(TYPES)}.{near(kind[:60], TYPES)}")
    if not model.startswith("random:"):
        raise UserError(f"{model[:120]!r}: only random weights (random:PRESET) are written as a GGUF file.")
    source = random.open_preset(model)
    check(source, kind)
    vocabulary = made_up(source.config.vocab_size)
    with files.replacing(out) as staged:
        writer = gguf.GGUFWriter(staged, source.config.model_type)
        try:
            describe(writer, source.config, model, kind, vocabulary)
            stream(writer, source, kind)
        finally:
            writer.close()
    _, _, *seeds = model.split(":")
    return Made(out, out.stat().st_size, kind, model, int(seeds[0]) if seeds else 0, weights_hash(out))


def check(source: Source, kind: str) -> None:
    """Raises UserError for a family that cannot be written, and for rows that are not a whole number of blocks."""
    config = source.config
    if config.model_type not in FAMILIES:
        raise UserError(
            f"{source.where}: only models of {' and '.join(FAMILIES)} can be written, not {config.model_type}."
        )
    for name, tensor in source.tensors.items():
        if len(tensor.shape) > 1 and tensor.shape[1] % RUN:
            raise UserError(f"{source.where}: {name} has rows of {tensor.shape[1]}; {kind} needs a multiple of {RUN}.")


def size_of(model: str, kind: str) -> int:
    """Bytes of the tensors of such a file."""
    source = random.open_preset(model)
    return sum(size for *_, size in laid_out(source, kind))


# What stands before the weights ---------------------------------------------------------------------------------------


def made_up(size: int) -> dict:
    """The packaged model's tokenizer with a vocabulary of `size`: truncated, or padded with made-up tokens.

    Raises UserError if the rest could not spell bytes; llama.cpp needs at least one merge.
    """
    metadata = read(packaged()).metadata
    tokens = metadata["tokenizer.ggml.tokens"][:size]
    known = set(tokens)
    more = (name for i in count() if (name := f"<|unused_{i}|>") not in known)
    types = metadata["tokenizer.ggml.token_type"][:size] + [UNUSED] * (size - len(tokens))
    merges = [
        merge
        for merge in metadata["tokenizer.ggml.merges"]
        if "".join(merge.split()) in known and known.issuperset(merge.split())
    ]
    if not merges:
        raise UserError(f"A vocabulary of {size} is too small for a tokenizer that llama.cpp loads; 512 is enough.")
    tokens += islice(more, size - len(tokens))
    return dict(tokens=tokens, types=types, merges=merges, pre=metadata["tokenizer.ggml.pre"])


def describe(writer: gguf.GGUFWriter, config: ModelConfig, model: str, kind: str, vocabulary: dict) -> None:
    """The metadata: what the weights are, the sizes, the tokenizer."""
    home = config.model_type
    writer.add_name(model)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.upper()}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for field, key in architecture_keys(home).items():
        value = getattr(config, field)
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(f"{home}.{key}", value)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    if config.rope_scaling and config.rope_scaling.kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_scaling.factor)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary["pre"])
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["types"])
    writer.add_token_merges(vocabulary["merges"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)


def gguf_name(name: str) -> str:
    """`model.layers.3.self_attn.q_proj.weight` → `blk.3.attn_q.weight`."""
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{STEMS[part]}.{suffix}"
    return f"{STEMS[stem]}.{suffix}"


# The weights ----------------------------------------------------------------------------------------------------------


def kinds(source: Source, form: str) -> dict[str, str]:
    """Hugging Face name → the type that its tensor is written in."""
    known = {name: t.shape for name, t in source.tensors.items()}
    vocabulary = {name for name in known if name.split(".")[-2] in quantised.VOCABULARY}
    return {
        name: quantised.quantise.kind_of(form, name in vocabulary) if len(shape) > 1 else "f32"
        for name, shape in known.items()
    }


def laid_out(source: Source, form: str) -> Iterator[tuple[str, tuple[int, ...], str, int]]:
    """(GGUF name, shape, type, bytes) of each tensor, in the order they are written; the divisors of stretched
    frequencies first."""
    if len(divisors(source.config)):
        yield FACTORS, divisors(source.config).shape, "f32", divisors(source.config).nbytes
    for name, kind in kinds(source, form).items():
        shape = source.tensors[name].shape
        width = 4 * math.prod(shape) if kind == "f32" else int(math.prod(shape) * BYTES_PER_WEIGHT[kind])
        yield gguf_name(name), shape, kind, width


def divisors(config: ModelConfig) -> np.ndarray:
    """Divisor of each rotary frequency, float32 [h/2]; none if they are unchanged or all divided alike, which the
    metadata say."""
    if config.rope_scaling is None or config.rope_scaling.kind == "linear":
        return np.empty(0, np.float32)
    plain = config.rope_theta ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
    return (plain / scale(plain, config.rope_scaling)).astype(np.float32)


def stream(writer: gguf.GGUFWriter, source: Source, form: str) -> None:
    """The table of the tensors, then one after the other."""
    for name, shape, kind, size in laid_out(source, form):
        writer.add_tensor_info(name, shape, np.dtype(np.float32), size, gguf.GGMLQuantizationType[kind.upper()])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if len(divisors(source.config)):
        writer.write_tensor_data(divisors(source.config))
    for name, kind in kinds(source, form).items():
        values = np.asarray(source.tensors[name].read(), np.float32)
        heads = rotated_heads(gguf_name(name), source.config)
        writer.write_tensor_data(rotated(values if kind == "f32" else quantise(values, kind), heads))


def rotated(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows [N, ...] with the halves of each head interleaved, as GGUF has a Llama's queries and keys; unchanged if
    heads is 0."""
    if not heads:
        return rows
    return np.ascontiguousarray(rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape))
