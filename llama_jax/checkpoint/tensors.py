"""Named tensors in, the model's pytree out. Every source speaks Hugging Face's tensor names and [out, in] layout."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import psutil

from llama_jax.attention import Attention
from llama_jax.config import ModelConfig
from llama_jax.embeddings import Embedding
from llama_jax.errors import UserError
from llama_jax.ffn import FFN
from llama_jax.head import Head
from llama_jax.layer import Layer
from llama_jax.model import Model


@dataclass(frozen=True)
class Tensor:
    """A tensor that has not been read yet: its shape, and how to get its values."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray | jax.Array]


@dataclass(frozen=True)
class Source:
    """An opened checkpoint: what is known before its weights are read."""

    where: str
    config: ModelConfig
    tensors: Mapping[str, Tensor]
    tokenizer: Callable
    hash: Callable[[], str]


@dataclass(frozen=True)
class Rows:
    """Names of the tensors whose rows, one below the other, make one weight."""

    names: tuple[str, ...]


def names(config: ModelConfig) -> Model:
    """The model's tree with the Hugging Face names of each weight in its place."""

    def layer(i: int) -> Layer:
        def rows(*parts: str) -> Rows:
            return Rows(tuple(f"model.layers.{i}.{part}.weight" for part in parts))

        return Layer(
            attention_norm=rows("input_layernorm"),
            attention=Attention(qkv=rows("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), o=rows("self_attn.o_proj")),
            ffn_norm=rows("post_attention_layernorm"),
            ffn=FFN(gate_up=rows("mlp.gate_proj", "mlp.up_proj"), down=rows("mlp.down_proj")),
        )

    head = Head(Rows(("model.norm.weight",)), None if config.tie_word_embeddings else Rows(("lm_head.weight",)))
    return Model(Embedding(Rows(("model.embed_tokens.weight",))), tuple(map(layer, range(config.num_hidden_layers))), head)


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face name → expected shape, for every weight of the model."""
    d, f, v = config.hidden_size, config.intermediate_size, config.vocab_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    ends = {"q_proj.weight": (queries, d), "k_proj.weight": (keys, d), "v_proj.weight": (keys, d), "o_proj.weight": (d, queries),
            "gate_proj.weight": (f, d), "up_proj.weight": (f, d), "down_proj.weight": (d, f),
            "embed_tokens.weight": (v, d), "lm_head.weight": (v, d)}  # fmt: skip
    every = [name for rows in jax.tree.leaves(names(config)) for name in rows.names]
    return {name: next((s for end, s in ends.items() if name.endswith(end)), (d,)) for name in every}


def assemble(source: Source, dtype: str) -> Model:
    """Read every weight, several at a time, into a Model of `dtype`. Shapes are checked before anything is read."""
    check(source)
    check_memory(source, np.dtype(jnp.dtype(dtype)).itemsize)

    def read(rows: Rows) -> jax.Array:
        parts = [source.tensors[name].read() for name in rows.names]
        return jnp.asarray(parts[0] if len(parts) == 1 else np.concatenate(parts)).astype(dtype)

    leaves, tree = jax.tree.flatten(names(source.config))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return jax.tree.unflatten(tree, pool.map(read, leaves))


def check(source: Source) -> None:
    """Every weight is there in its shape, and no bias that the model would silently leave out."""
    if biases := sorted(name for name in source.tensors if name.endswith(".bias")):
        raise UserError(f"{source.where}: it has biases ({biases[0]}, …); Llama models with biases are not supported.")
    for name, shape in shapes(source.config).items():
        if name not in source.tensors:
            raise UserError(f"{source.where}: tensor {name} is missing; the file is incomplete or not of this configuration.")
        found = tuple(source.tensors[name].shape)
        if found != shape:
            raise UserError(f"{source.where}: tensor {name} has shape {list(found)}, the configuration says {list(shape)}.")


def check_memory(source: Source, itemsize: int) -> None:
    needed, free = source.config.num_parameters * itemsize, psutil.virtual_memory().available
    if needed > free:
        raise UserError(f"{source.where}: the weights need {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free;"
                        " load it as bfloat16 or choose a smaller model.")  # fmt: skip


def from_state_dict(config: ModelConfig, tensors: Mapping[str, object], dtype: str = "float32") -> Model:
    """A Model from a PyTorch `state_dict` with Hugging Face's names. bfloat16 and float16 widen exactly.

    Raises UserError for a missing or misshapen tensor.
    """

    def lazy(tensor) -> Tensor:
        return Tensor(tuple(tensor.shape), lambda: tensor.detach().cpu().float().numpy())

    source = Source("state_dict", config, {k: lazy(v) for k, v in tensors.items()}, lambda: None, lambda: "")
    return assemble(source, dtype)


def hash_files(paths) -> str:
    """SHA-256 of the files' contents, in the given order."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()
