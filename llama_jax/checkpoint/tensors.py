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

from llama_jax.attention import Attention
from llama_jax.config import ModelConfig
from llama_jax.embeddings import Embedding
from llama_jax.errors import UserError
from llama_jax.ffn import FFN
from llama_jax.head import Head
from llama_jax.layer import Layer
from llama_jax.model import Model
from llama_jax.norm import Norm


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
class Parts:
    """Names of the tensors that, one after the other along an axis, make one weight.

    axis: 1 for a product's weight, which the model keeps [in, out]. turned: Hugging Face stores it [out, in].
    """

    names: tuple[str, ...]
    axis: int = 0
    turned: bool = False

    @property
    def conv1d(self) -> bool:
        """Whether Hugging Face stores it [in, out] too."""
        return self.axis == 1 and not self.turned

    def turn(self, values):
        """From Hugging Face's layout to the model's, or back."""
        return values.T if self.turned else values


def names(config: ModelConfig) -> Model:
    """The model's tree with the Hugging Face names of each weight in its place."""
    layers = range(config.num_hidden_layers)
    if config.model_type == "gpt2":
        tables = Embedding(Parts(("transformer.wte.weight",)), Parts(("transformer.wpe.weight",)))
        return Model(tables, tuple(map(gpt2_layer, layers)), Head(norm_parts("transformer.ln_f", True), None))
    head = Head(norm_parts("model.norm", False), None if config.tie_word_embeddings else Parts(("lm_head.weight",)))
    return Model(Embedding(Parts(("model.embed_tokens.weight",))), tuple(llama_layer(i, config) for i in layers), head)


def norm_parts(name: str, bias: bool) -> Norm:
    return Norm(Parts((f"{name}.weight",)), Parts((f"{name}.bias",)) if bias else None)


def llama_layer(i: int, config: ModelConfig) -> Layer:
    """Names of a layer of Llama or Qwen2."""

    def weight(*parts: str) -> Parts:
        return Parts(tuple(f"model.layers.{i}.{part}.weight" for part in parts), axis=1, turned=True)

    def bias(*parts: str) -> Parts:
        return Parts(tuple(f"model.layers.{i}.{part}.bias" for part in parts))

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    return Layer(
        attention_norm=norm_parts(f"model.layers.{i}.input_layernorm", False),
        attention=Attention(weight(*qkv), weight("self_attn.o_proj"), bias(*qkv) if config.qkv_bias else None),
        ffn_norm=norm_parts(f"model.layers.{i}.post_attention_layernorm", False),
        ffn=FFN(gate_up=weight("mlp.gate_proj", "mlp.up_proj"), down=weight("mlp.down_proj")),
    )


def gpt2_layer(i: int) -> Layer:
    """Names of a layer of GPT-2, whose products are `Conv1D`: weights stored [in, out]."""
    home = f"transformer.h.{i}"

    def conv(part: str) -> tuple[Parts, Parts]:
        return Parts((f"{home}.{part}.weight",), axis=1), Parts((f"{home}.{part}.bias",))

    (qkv, qkv_bias), (o, o_bias) = conv("attn.c_attn"), conv("attn.c_proj")
    (up, up_bias), (down, down_bias) = conv("mlp.c_fc"), conv("mlp.c_proj")
    return Layer(
        norm_parts(f"{home}.ln_1", True), Attention(qkv, o, qkv_bias, o_bias),
        norm_parts(f"{home}.ln_2", True), FFN(up, down, up_bias, down_bias),
    )  # fmt: skip


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face name → expected shape, for every weight of the model, in the order of the tree."""
    found = {}
    for parts in jax.tree.leaves(names(config)):
        for name in parts.names:
            sizes = out_in(name, config)
            found[name] = sizes[::-1] if parts.conv1d else sizes if name.endswith("weight") else sizes[:1]
    return found


def out_in(name: str, config: ModelConfig) -> tuple[int, ...]:
    """(rows, columns) of the product that a tensor belongs to, its table's, or (D,) of a norm's."""
    d, f = config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    sizes = {"q_proj": (queries, d), "k_proj": (keys, d), "v_proj": (keys, d), "o_proj": (d, queries), "gate_proj": (f, d),
             "up_proj": (f, d), "down_proj": (d, f), "embed_tokens": (config.vocab_size, d), "lm_head": (config.vocab_size, d),
             "wte": (config.vocab_size, d), "wpe": (config.max_position_embeddings, d), "attn.c_attn": (queries + 2 * keys, d),
             "attn.c_proj": (d, queries), "mlp.c_fc": (f, d), "mlp.c_proj": (d, f)}  # fmt: skip
    module = name.rpartition(".")[0]
    return next((size for end, size in sizes.items() if module == end or module.endswith("." + end)), (d,))


def assemble(source: Source, dtype: str) -> Model:
    """Read every weight, several at a time, into a Model of `dtype`. Shapes are checked before anything is read."""
    check(source)
    check_memory(source, np.dtype(jnp.dtype(dtype)).itemsize)

    def read(parts: Parts) -> jax.Array:
        values, stored = [source.tensors[name].read() for name in parts.names], 0 if parts.turned else parts.axis
        return parts.turn(jnp.asarray(values[0] if len(values) == 1 else np.concatenate(values, axis=stored)).astype(dtype))

    leaves, tree = jax.tree.flatten(names(source.config))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return jax.tree.unflatten(tree, pool.map(read, leaves))


def check(source: Source) -> None:
    """Every weight is there in its shape, and no bias that the model would silently leave out."""
    expected = shapes(source.config)
    if biases := sorted(name for name in source.tensors if name.endswith(".bias") and name not in expected):
        raise UserError(f"{source.where}: it has biases ({biases[0]}, …) that a {source.config.model_type} model has not.")
    for name, shape in expected.items():
        if name not in source.tensors:
            raise UserError(f"{source.where}: tensor {name} is missing; the file is incomplete or not of this configuration.")
        found = tuple(source.tensors[name].shape)
        if found != shape:
            raise UserError(f"{source.where}: tensor {name} has shape {list(found)}, the configuration says {list(shape)}.")


def check_memory(source: Source, itemsize: int) -> None:
    import psutil  # here: a machine that only measures speed may lack it

    needed, free = source.config.num_parameters * itemsize, psutil.virtual_memory().available
    if needed > free:
        raise UserError(f"{source.where}: the weights need {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free;"
                        " load it as bfloat16 or choose a smaller model.")  # fmt: skip


def named(config: ModelConfig, params: Model) -> dict[str, np.ndarray]:
    """The model's weights as separate host arrays under their Hugging Face names and layout: the inverse of `assemble`."""
    sizes, found = shapes(config), {}
    for parts, weight in zip(jax.tree.leaves(names(config)), jax.tree.leaves(params), strict=True):
        lengths = [sizes[name][1 if parts.conv1d else 0] for name in parts.names]
        pieces = np.split(np.asarray(weight), np.cumsum(lengths)[:-1], axis=parts.axis)
        found |= {name: parts.turn(piece) for name, piece in zip(parts.names, pieces, strict=True)}
    return found


def hash_files(paths) -> str:
    """SHA-256 of the files' contents, in the given order."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()
