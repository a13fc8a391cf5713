"""Hugging Face layout: config.json, safetensors (one file or shards), tokenizer.json. Local folders, and the hub by
name."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llama_jax.checkpoint import keys
from llama_jax.checkpoint.source import Source, Tensor, check_finite, hash_files, hashed_later, with_head
from llama_jax.config import FAMILIES, ModelConfig
from llama_jax.plumbing.errors import UserError

if TYPE_CHECKING:
    from llama_jax.tokenizer import Tokenizer

# a tokenizer, in one of the forms that are read, and in one that is not
TOKENIZERS = ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model")
OTHER_TOKENIZERS = ("vocab.txt", "spiece.model", "sentencepiece.bpe.model", "tekken.json", "qwen.tiktoken")
FILES = ["config.json", "generation_config.json", *TOKENIZERS, "tokenizer_config.json", "special_tokens_map.json",
         "added_tokens.json", "chat_template.jinja", "*.safetensors", "model.safetensors.index.json"]  # fmt: skip


def open_hub(name: str) -> Source:
    """Download a hub model's configuration, tokenizer and safetensors (or find them in the hub cache) and open them."""
    from huggingface_hub import errors, snapshot_download

    try:
        return open_folder(Path(snapshot_download(name, allow_patterns=FILES)))
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise UserError(
            f"The hub has no model {name!r}, or it asks for a login: check the name, or run `hf auth login`."
        ) from error
    except (errors.LocalEntryNotFoundError, errors.HfHubHTTPError, OSError) as error:
        why = type(error).__name__
        raise UserError(
            f"The hub could not be reached for {name!r} ({why}): check the network, or name a local folder."
        ) from error


def open_folder(folder: Path) -> Source:
    """Open a model folder. Raises UserError for a missing or damaged file, or an unsupported architecture."""
    config = read_config(folder, raw := read_object(folder / "config.json"))
    files = safetensors_files(folder)
    tensors = {}
    for path in files:
        in_file = list_tensors(path)
        if twice := tensors.keys() & in_file.keys():
            raise UserError(f"{path}: tensor {min(twice)} is in another file of this folder too; remove one of them.")
        tensors |= in_file
    config, tensors = with_head(config, canonical(config, tensors))
    tokenizer = partial(read_tokenizer, folder, config, raw)
    return Source(str(folder), config, tensors, tokenizer, hashed_later(files, partial(hash_files, files)))


def read_object(path: Path) -> dict:
    """A JSON file that holds an object."""
    from llama_jax.plumbing import boundary  # here: a machine that only measures may lack pydantic

    try:
        return boundary.read(dict[str, Any], boundary.load(path), str(path))
    except FileNotFoundError:
        raise UserError(f"{path.parent}: no {path.name} in this folder; it is not a Hugging Face model.") from None


MODEL_TYPES = {"gemma3": "gemma3_text"}  # family: its name in config.json, where that is another one
KNOWN = {MODEL_TYPES.get(family, family): family for family in FAMILIES}
CONSTANTS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")  # computed here from the configuration


def canonical(config: ModelConfig, tensors: dict) -> dict:
    """Tensors under the full names of the model with its head, without those that are not weights. The hub's GPT-2
    omits the prefix and stores its causal mask; old Llamas store their rotary frequencies."""
    weights = {name: t for name, t in tensors.items() if not name.endswith(CONSTANTS)}
    if config.model_type == "gemma3":
        return {name: above_one(t) if "norm" in name else t for name, t in weights.items()}
    if config.model_type != "gpt2":
        return weights
    return {
        name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}": t
        for name, t in sorted(weights.items())
    }


def above_one(tensor: Tensor) -> Tensor:
    """A norm of Gemma, whose weights are stored minus 1."""
    return replace(tensor, read=lambda: np.asarray(tensor.read(), np.float32) + 1)


ROOT = {"norm_eps": "rms_norm_eps"}
NAMES = {  # field of a ModelConfig: its name in config.json
    "llama": ROOT,
    "qwen2": ROOT,
    "qwen3": ROOT,
    "smollm3": ROOT,
    "mistral": ROOT | {"window": "sliding_window"},
    "phi3": ROOT | {"window": "sliding_window", "rotary_dim": "-"},  # "-": no name here
    "gemma3": ROOT
    | {
        "window": "sliding_window",
        "period": "sliding_window_pattern",
        "local_rope_theta": "rope_local_base_freq",
        "attention_scalar": "query_pre_attn_scalar",
    },
    "gpt2": {
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "norm_eps": "layer_norm_epsilon",
        "max_position_embeddings": "n_positions",
    },
}
DEFAULTS = {  # what a config.json may leave out
    "llama": dict(rms_norm_eps=1e-6, max_position_embeddings=2048),
    "qwen2": dict(rms_norm_eps=1e-6, max_position_embeddings=32768),
    "gpt2": dict(layer_norm_epsilon=1e-5, n_positions=1024, tie_word_embeddings=True),
    "qwen3": dict(rms_norm_eps=1e-6, max_position_embeddings=32768, head_dim=128),
    "mistral": dict(rms_norm_eps=1e-6, max_position_embeddings=131072, sliding_window=4096),
    "smollm3": dict(rms_norm_eps=1e-6, max_position_embeddings=32768, tie_word_embeddings=True,
                    rope_theta=2e6),
    "phi3": dict(rms_norm_eps=1e-5, max_position_embeddings=4096, original_max_position_embeddings=4096),
    "gemma3": dict(rms_norm_eps=1e-6, max_position_embeddings=131072, head_dim=256,
                   tie_word_embeddings=True, rope_theta=1e6, sliding_window=4096, query_pre_attn_scalar=256),
}  # fmt: skip


def read_config(folder: Path | str, raw: dict) -> ModelConfig:
    """ModelConfig from config.json, in the layout of transformers 4 (rope_scaling) or 5 (rope_parameters). Raises
    UserError for an unknown family, for an unsupported setting that would change what the model computes, and for one
    that is given twice with different values."""
    from llama_jax.checkpoint import features, ropes  # here: as above
    from llama_jax.plumbing import boundary

    if (kind := raw.get("model_type")) not in tuple(KNOWN):
        raise UserError(
            f"{folder}: model_type {boundary.shown(kind)} is not supported; this project reads {', '.join(KNOWN)}."
        )
    kind, (raw, apart) = KNOWN[kind], ropes.taken_apart(f"{folder}: config.json", KNOWN[kind], raw)
    fields, read = DEFAULTS[kind] | raw, read_keys(kind)
    for key, value in raw.items():
        if keys.changes(value, verdict := keys.hf_verdict(key, kind, read), fields):
            raise UserError(
                f"{folder}: {key} is {boundary.shown(value)} in config.json; a {kind} model is supported with"
                f" {keys.allowed(verdict)} alone."
            )
    where, given = f"{folder}: config.json", raw | apart
    for field, name in NAMES[kind].items() if kind == "gpt2" else ():  # its sizes may have the usual names too
        if (usual := given.pop(field, None)) is not None and given.setdefault(name, usual) != usual:
            raise ropes.contradiction(where, {field: usual, name: given[name]})
    scaling = None
    if "rope_theta" in features.shape(kind).model_fields:
        given["rope_theta"], scaling = ropes.read(where, raw)
    given = {key: value for key, value in given.items() if key != "rope_theta" or value is not None}
    return boundary.read(features.shape(kind, NAMES[kind]), DEFAULTS[kind] | given, where).config(kind, scaling)


def read_keys(family: str) -> set[str]:
    """The keys of config.json that are read."""
    from llama_jax.checkpoint import features  # here: as above

    fields = features.shape(family).model_fields
    rope = {"rope_parameters", "rope_scaling"} if "rope_theta" in fields else set()
    return {"model_type", "eos_token_id", *fields, *(NAMES[family].get(field, field) for field in fields), *rope}


def safetensors_files(folder: Path) -> list[Path]:
    """The weight files: those in the shard index, or all in the folder."""
    from llama_jax.checkpoint import declared
    from llama_jax.plumbing import boundary

    index = folder / "model.safetensors.index.json"
    if os.path.lexists(index):
        shards = boundary.read(
            dict[str, declared.Shard], read_object(index).get("weight_map", {}), f"{index}: weight_map"
        )
        files = sorted({folder / name for name in shards.values()})
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder}: no .safetensors file in this folder; save the model with `save_pretrained`.")
    for path in files:
        if not path.exists():
            raise UserError(f"{folder}: the shard {path.name} named in {index.name} is missing.")
        if not path.is_file():
            raise UserError(f"{path} is not a regular file.")
    return files


DTYPES = ("F64", "F32", "F16", "BF16")


def list_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import safe_open  # here: a machine that only measures may lack it

    tensors = {}
    with reading(path), safe_open(path, framework="flax") as file:
        for name in file.keys():  # noqa: SIM118
            tensor = file.get_slice(name)
            if (dtype := tensor.get_dtype()) not in DTYPES:
                raise UserError(f"{path}: tensor {name:.80} has the unsupported type {dtype}; supported: {DTYPES}.")
            tensors[name] = Tensor(tuple(tensor.get_shape()), partial(read_tensor, path, name))
    check_unique(path)
    return tensors


def check_unique(path: Path) -> None:
    """Raises UserError if the header has a duplicate name, of which the library would keep one. The library has already
    found the header well formed."""

    def unique(pairs: list[tuple[str, object]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise UserError(f"{path}: the safetensors header has a duplicate name; the file is damaged.")

    with reading(path), path.open("rb") as file:
        json.loads(file.read(int.from_bytes(file.read(8), "little")), object_pairs_hook=unique)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns the library's exceptions into one line."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: the safetensors file is truncated or damaged ({error}).") from error


def read_tensor(path: Path, name: str):
    from safetensors import safe_open

    with reading(path), safe_open(path, framework="flax") as file:
        values = file.get_tensor(name)
    check_finite(np.asarray(values), str(path), name)
    return values


def read_tokenizer(folder: Path, config: ModelConfig, raw: dict) -> Tokenizer | None:
    """The folder's tokenizer, or None if it has none."""
    if not any(os.path.lexists(folder / name) for name in (*TOKENIZERS, *OTHER_TOKENIZERS)):
        return None
    from llama_jax.checkpoint.tokenizer_files import from_folder  # here: as above

    names = ("tokenizer_config.json", "generation_config.json", "special_tokens_map.json", "added_tokens.json")
    declared, generation, special, added = (
        read_object(folder / name) if os.path.lexists(folder / name) else {} for name in names
    )
    if "added_tokens_decoder" not in declared:  # older folders
        declared |= special
        if not os.path.lexists(folder / "tokenizer.json"):
            declared["added_tokens_decoder"] = {str(i): {"content": token} for token, i in added.items()}
    return from_folder(folder, config.vocab_size, raw, declared, generation)
