"""Tokens through a whole Llama or Qwen2 model on quantised weights as one XLA operation: embedding to logits.

One token, several of a sequence (a prompt, drafts), or of several sequences: the weights are read once for all, and
each row gets the bits that it would get alone. Its KV cache has a layout of its own, float16: keys [L, B K, S/16, h,
16], values [L, B K, S, h], all layers together, by position: padding takes no place in it, and costs nothing.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax.config import ModelConfig
from llama_jax.errors import UserError
from llama_jax.kernels.registry import registered
from llama_jax.model import Model, rope
from llama_jax.model.axes import Array, Int
from llama_jax.model.kvc import DTYPES, FUSED, Cache

TILE = 16  # positions of a tile of keys
MULTIPLE = 32  # that sizes must be of: a block's columns


def check(config: ModelConfig) -> None:
    """Raises UserError, one line, for a model that the kernel does not compute."""
    if config.norm != "rms" or config.positions != "rope" or config.bias or not config.gated:
        raise UserError(f"The fused kernel runs Llama and Qwen2 models, not {config.model_type}; use +gemv.")
    for name, size, multiple in (
        ("hidden_size", config.hidden_size, MULTIPLE),
        ("intermediate_size", config.intermediate_size, MULTIPLE),
        ("num_attention_heads times head_dim", config.num_attention_heads * config.head_dim, MULTIPLE),
        ("head_dim", config.head_dim, TILE),
    ):
        if size % multiple:
            raise UserError(f"The fused kernel needs {name} to be a multiple of {multiple}, it is {size}; use +gemv.")


def create(config: ModelConfig, pad: Int[Array, " B"], slots: int) -> Cache:
    """An empty cache for B sequences with room for `slots` positions."""
    room, heads = -(-slots // TILE) * TILE, pad.shape[0] * config.num_key_value_heads
    layers, size, dtype = config.num_hidden_layers, config.head_dim, DTYPES[FUSED]
    keys = jnp.zeros((layers, heads, room // TILE, size, TILE), dtype)
    return Cache((keys, jnp.zeros((layers, heads, room, size), dtype)), None, jnp.zeros((), jnp.int32), pad)


def slots(cache: Cache) -> int:
    """Positions that a packed cache has room for."""
    return cache.entries[1].shape[2]


def transform(
    model: Model,
    ids: Int[Array, "B T"],
    cache: Cache,
    *,
    config: ModelConfig,
    inverse: np.ndarray,
    logits: str = "last",
):
    """T tokens of each sequence → (logits float32 [M V], the best of each int32 [M], cache with T more positions).

    logits: "last" of each sequence (M = B), "all" (M = B T, row b T + t) or "none" (M = 0). model: its layers `packed`.
    """
    keys, values = (jax.ShapeDtypeStruct(entry.shape, entry.dtype) for entry in cache.entries)
    rows = dict(last=ids.shape[0], all=ids.size, none=0)[logits]
    results = (
        jax.ShapeDtypeStruct((rows, config.vocab_size), jnp.float32),
        jax.ShapeDtypeStruct((rows,), jnp.int32),
        keys,
        values,
    )
    call = jax.ffi.ffi_call(registered("llama_jax_fused"), results, input_output_aliases={7: 2, 8: 3})
    attributes = dict(
        bias=np.int64(config.qkv_bias),
        eps=np.float32(config.norm_eps),
        feed_forward=np.int64(config.intermediate_size),
        heads=np.int64(config.num_attention_heads),
    )
    values, best, *entries = call(*operands(model, ids, cache, inverse), **attributes)
    return values, best, replace(cache, entries=tuple(entries), length=cache.length + ids.shape[1])


def operands(model: Model, ids: Int[Array, "B T"], cache: Cache, inverse: np.ndarray) -> list[jax.Array]:
    """What the kernel is given, in its order (`native.operands`)."""
    first = cache.length - cache.pad
    positions = first[:, None] + jnp.arange(ids.shape[1], dtype=jnp.int32)
    cos, sin = (part.reshape(ids.size, part.shape[-1]) for part in rope.angles(positions, inverse))
    head = model.embedding.weight if model.head.weight is None else model.head.weight
    layers = model.layers
    fixed = [ids, first, cos, sin, model.embedding.weight.data, head.data, model.head.norm.weight, *cache.entries]
    biases = [] if layers.biases is None else [layers.biases]
    return [*fixed, layers.norms, layers.blocks, layers.table, *biases]
