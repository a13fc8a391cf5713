"""Tokens through a whole model, Llama or one like it, on quantised weights as one XLA operation: embedding to logits.

It takes one token, several of a sequence (a prompt, drafts), or tokens of several sequences. The weights are read once
for all, and each row gets the same bits as alone. Its KV cache has its own layout in float16: keys [L, B K, S/16, h,
16], values [L, B K, S, h], all layers together, by position. Padding takes no space in it, and costs nothing.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax import rope
from llama_jax.axes import Array, Int
from llama_jax.config import ModelConfig
from llama_jax.kernels import build
from llama_jax.kvc import DTYPES, FUSED, KVCache
from llama_jax.model import Model
from llama_jax.plumbing.errors import UserError

TILE = 16  # positions of a tile of keys
MULTIPLE = 32  # that sizes must be of: a block's columns
FEATURES = (  # of `ModelConfig.features`, those that the kernel computes
    "o_bias", "qk_norm", "post_norms", "embedding_scale", "attention_scale", "window", "local_layers",
    "local_rope_theta", "unrotated_layers", "rotary_dim", "rotary_scale",
)  # fmt: skip


def check(config: ModelConfig) -> None:
    """Raises UserError, one line, for a model that the kernel does not support."""
    lacking = [f"hidden_act {config.hidden_act!r}"] if config.hidden_act not in ("silu", "gelu_tanh") else []
    lacking += [name for name in config.features if name not in FEATURES]
    if config.norm != "rms" or config.positions != "rope" or config.bias or lacking:
        why = f" with {', '.join(lacking)}" if lacking else ""
        raise UserError(f"The fused kernel runs Llama and models like it, not {config.model_type}{why}; use +gemv.")
    for name, size, multiple in (
        ("hidden_size", config.hidden_size, MULTIPLE),
        ("intermediate_size", config.intermediate_size, MULTIPLE),
        ("num_attention_heads times head_dim", config.num_attention_heads * config.head_dim, MULTIPLE),
        ("head_dim", config.head_dim, TILE),
    ):
        if size % multiple:
            raise UserError(f"The fused kernel needs {name} to be a multiple of {multiple}, it is {size}; use +gemv.")


def entry(config: ModelConfig) -> str:
    """The entry point for a model. Models with features have their own kernel, so that others do not pay for it."""
    return build.MORE if config.features or config.hidden_act != "silu" else "llama_jax_fused"


def create(config: ModelConfig, pad: Int[Array, " B"], slots: int) -> KVCache:
    """An empty cache for B sequences with room for `slots` positions."""
    room, heads = -(-slots // TILE) * TILE, pad.shape[0] * config.num_key_value_heads
    layers, size, dtype = config.num_hidden_layers, config.head_dim, DTYPES[FUSED]
    keys = jnp.zeros((layers, heads, room // TILE, size, TILE), dtype)
    return KVCache((keys, jnp.zeros((layers, heads, room, size), dtype)), None, jnp.zeros((), jnp.int32), pad)


def transform(
    model: Model,
    ids: Int[Array, "B T"],
    cache: KVCache,
    *,
    config: ModelConfig,
    logits: str = "last",
):
    """T tokens of each sequence → (logits float32 [M V], the best of each int32 [M], cache with T more positions).

    logits: "last" of each sequence (M = B), "all" (M = B T, row b T + t) or "none" (M = 0). model: its layers `packed`.
    """
    first, every = cache.length - cache.pad, jnp.arange(ids.shape[0], dtype=jnp.int32)
    values, best, entries = rows(model, ids, first, every, cache.entries, config=config, logits=logits)
    return values, best, replace(cache, entries=entries, length=cache.length + ids.shape[1])


def rows(
    model: Model,
    ids: Int[Array, "B T"],
    first: Int[Array, " B"],
    numbers: Int[Array, " B"],
    entries: tuple[jax.Array, jax.Array],
    *,
    config: ModelConfig,
    logits: str = "last",
):
    """As `transform`, for some of the sequences of a cache, each at its own position: → (logits, best, entries).

    first: the position of each sequence's first token, below 0 for padding. numbers: which of the cache's sequences
    each is, rising. entries: keys and values [L, C K, …] of C sequences.
    """
    keys, values = (jax.ShapeDtypeStruct(entry.shape, entry.dtype) for entry in entries)
    many = dict(last=ids.shape[0], all=ids.size, none=0)[logits]
    results = (
        jax.ShapeDtypeStruct((many, config.vocab_size), jnp.float32),
        jax.ShapeDtypeStruct((many,), jnp.int32),
        keys,
        values,
    )
    call = jax.ffi.ffi_call(build.registered(entry(config)), results, input_output_aliases={8: 2, 9: 3})
    given = operands(model, ids, first, numbers, entries, config)
    values, best, *entries = call(*given, **attributes(config))
    return values, best, tuple(entries)


def attributes(config: ModelConfig) -> dict[str, np.number]:
    """What the kernel is told of a model (`native.operands`, `native.more`)."""
    every = dict(
        bias=np.int64(config.qkv_bias),
        eps=np.float32(config.norm_eps),
        feed_forward=np.int64(config.intermediate_size),
        heads=np.int64(config.num_attention_heads),
        key_heads=np.int64(config.num_key_value_heads),
    )
    if entry(config) != build.MORE:
        return every
    scale = config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale
    return every | dict(
        scale=np.float32(scale),
        scale_embedding=np.float32(config.embedding_scale),
        tanh=np.int64(config.hidden_act == "gelu_tanh"),
    )


def operands(model: Model, ids, first, numbers, entries, config: ModelConfig) -> list[jax.Array]:
    """What the kernel is given, in its order (`native.operands`, `native.more`); as `rows`."""
    positions = first[:, None] + jnp.arange(ids.shape[1], dtype=jnp.int32)
    layers, (ropes, kinds) = model.layers, rope.of_layers(config)
    if entry(config) == build.MORE:
        angles = all_angles(ropes, positions)
        places = jnp.array([(kind, ropes[kind].window or 0) for kind in kinds], jnp.int32)
        rows = (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
        shapes = (0, rows), (0, 2, config.head_dim), (0, config.hidden_size)  # of what a model does not have
        biases, *small = (
            jnp.zeros(shape) if array is None else array
            for array, shape in zip((layers.biases, layers.head_norms, layers.o_biases), shapes, strict=True)
        )
        more = [biases, places, *small]
    else:
        angles, more = rope.turned(ropes[0], positions), [] if layers.biases is None else [layers.biases]
    cos, sin = (part.reshape(*part.shape[:-4], ids.size, part.shape[-1]) for part in angles)
    fixed = [ids, first, numbers, cos, sin, model.embeddings.weight.data, model.vocabulary.data, model.head.norm.weight]
    return [*fixed, *entries, layers.norms, layers.blocks, layers.table, *more]


def all_angles(ropes: tuple[rope.Rope, ...], positions: Int[Array, "B T"]) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines [ropes B 1 T r/2]; where a rope rotates nothing, of 0."""
    half = next((len(each.inverse) for each in ropes if each.inverse), 1)
    still = jnp.ones((len(positions), 1, positions.shape[1], half))
    each = [(still, 0 * still) if one.inverse is None else rope.turned(one, positions) for one in ropes]
    return tuple(map(jnp.stack, zip(*each, strict=True)))
