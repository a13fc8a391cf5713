"""Hugging Face layout: config.json, safetensors (one file or shards), tokenizer.json. Local folders, and the hub by
name."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from llama_jax.checkpoint.source import Source, Tensor, hash_files
from llama_jax.config import FAMILIES, ModelConfig, RopeScaling
from llama_jax.errors import UserError

if TYPE_CHECKING:
    from llama_jax.text.tokenizer import Tokenizer

FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
         "*.safetensors", "model.safetensors.index.json"]  # fmt: skip


def open_hub(name: str) -> Source:
    """Fetch a hub model's configuration, tokenizer and safetensors (or find them in the hub cache) and open them."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return open_folder(Path(snapshot_download(name, allow_patterns=FILES)))
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(
            f"The hub has no model {name!r}, or it asks for a login: check the name, or run `hf auth login`."
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        why = type(error).__name__
        raise UserError(
            f"The hub could not be reached for {name!r} ({why}): check the network, or name a local folder."
        ) from error


def open_folder(folder: Path) -> Source:
    """Open a model folder. Raises UserError for a missing or damaged file, or an unsupported architecture."""
    config = read_config(folder, read_json(folder / "config.json"))
    files = safetensors_files(folder)
    tensors = canonical(config, {name: tensor for path in files for name, tensor in list_tensors(path).items()})
    return Source(str(folder), config, tensors, partial(read_tokenizer, folder), lambda: hash_files(files))


def read_json(path: Path) -> dict:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path.parent}: no {path.name} in this folder; it is not a Hugging Face model.") from None
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error}).") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: it holds a JSON {type(found).__name__}, not an object.")
    return found


def canonical(config: ModelConfig, tensors: dict) -> dict:
    """Tensors under the full names of the model with its head: the hub's GPT-2 leaves the prefix out, and stores its
    causal mask."""
    if config.model_type != "gpt2":
        return tensors
    full = {
        name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}": t
        for name, t in tensors.items()
    }
    return {name: t for name, t in full.items() if not name.endswith((".attn.bias", ".attn.masked_bias"))}


def read_config(folder: Path | str, raw: dict) -> ModelConfig:
    """ModelConfig from config.json, in the layout of transformers 4 (rope_scaling) or 5 (rope_parameters)."""
    readers = {"llama": read_llama, "qwen2": read_llama, "gpt2": read_gpt2}
    if (kind := raw.get("model_type")) not in readers:
        raise UserError(f"{folder}: model_type {kind!r} is not supported; this project reads {', '.join(readers)}.")
    check_supported(folder, raw)
    try:
        return readers[kind](folder, raw)
    except KeyError as error:
        raise UserError(f"{folder}: config.json has no {error.args[0]}.") from error


UNSUPPORTED = {  # key of config.json: the only value that the model can run, which is also the default
    "llama": dict(attention_bias=False, mlp_bias=False, hidden_act="silu"),
    "qwen2": dict(use_sliding_window=False, hidden_act="silu"),
    "gpt2": dict(activation_function="gelu_new", scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False,
                 add_cross_attention=False, tie_word_embeddings=True),
}  # fmt: skip


def check_supported(folder: Path | str, raw: dict) -> None:
    """Raises UserError for a setting of config.json that would change what the model computes."""
    for key, only in UNSUPPORTED[raw["model_type"]].items():
        found = raw.get(key, only)
        if (found or False) != only:
            raise UserError(
                f"{folder}: {key} is {found!r} in config.json; a {raw['model_type']} model is supported with {only!r}"
                " alone."
            )


def read_llama(folder: Path | str, raw: dict) -> ModelConfig:
    """Llama's and Qwen2's configuration."""
    rope = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    heads = raw["num_attention_heads"]
    return ModelConfig(
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_hidden_layers=raw["num_hidden_layers"],
        num_attention_heads=heads,
        num_key_value_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
        vocab_size=raw["vocab_size"],
        norm_eps=raw.get("rms_norm_eps", 1e-6),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        rope_scaling=read_scaling(folder, rope),
        max_position_embeddings=raw.get("max_position_embeddings", 2048),
        tie_word_embeddings=raw.get("tie_word_embeddings", False),
        **FAMILIES[raw["model_type"]],
    )


def read_gpt2(folder: Path | str, raw: dict) -> ModelConfig:
    """GPT-2's configuration, which has names of its own."""
    width, heads = raw["n_embd"], raw["n_head"]
    return ModelConfig(
        hidden_size=width,
        intermediate_size=raw.get("n_inner") or 4 * width,
        num_hidden_layers=raw["n_layer"],
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=width // heads,
        vocab_size=raw["vocab_size"],
        norm_eps=raw.get("layer_norm_epsilon", 1e-5),
        max_position_embeddings=raw.get("n_positions", 1024),
        tie_word_embeddings=True,
        **FAMILIES["gpt2"],
    )


def read_scaling(folder: Path | str, rope: dict) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", rope["factor"])
    if kind == "llama3":
        keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        return RopeScaling("llama3", *(rope[key] for key in keys))
    raise UserError(f"{folder}: RoPE scaling {kind!r} is not supported; supported: default, linear, llama3.")


def safetensors_files(folder: Path) -> list[Path]:
    """The weight files, as the shard index lists them or as they lie there."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = sorted({folder / name for name in read_json(index).get("weight_map", {}).values()})
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder}: no .safetensors file in this folder; save the model with `save_pretrained`.")
    for path in files:
        if not path.is_file():
            raise UserError(f"{folder}: the shard {path.name} named in {index.name} is missing.")
    return files


def list_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open  # here: a machine that only measures may lack it

    try:
        with safe_open(path, framework="flax") as file:
            return {k: Tensor(tuple(file.get_slice(k).get_shape()), partial(read_tensor, path, k)) for k in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: the safetensors file is truncated or damaged ({error}).") from error


def read_tensor(path: Path, name: str):
    from safetensors import safe_open

    with safe_open(path, framework="flax") as file:
        return file.get_tensor(name)


def read_tokenizer(folder: Path) -> Tokenizer | None:
    """The folder's tokenizer, or None where it has none."""
    if not (folder / "tokenizer.json").is_file():
        return None
    from llama_jax.text.tokenizer import from_folder  # here: as above

    optional = ("tokenizer_config.json", "generation_config.json")
    parts = {name: read_json(folder / name) if (folder / name).is_file() else {} for name in optional}
    return from_folder(folder, read_json(folder / "config.json"), *parts.values())
