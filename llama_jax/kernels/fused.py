"""One decoded token as one XLA operation: embedding to logits of a Llama or Qwen2 model on quantised weights.

Its KV cache has a layout of its own, float16: keys [L, K, S/16, h, 16], values [L, K, S, h], all layers of one row
together.
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


def pack(cache: Cache, slots: int) -> Cache:
    """A fixed cache of one row, entries (keys, values) [K S h] a layer, as the kernel keeps it, with room for `slots`
    positions.

    Raises UserError for more than one row.
    """
    if cache.pad.shape[0] != 1:
        raise UserError(f"The fused kernel decodes one row, not {cache.pad.shape[0]}; use +gemv for batches.")
    room = -(-slots // TILE) * TILE
    keys, values = (
        jnp.pad(jnp.stack(part).astype(DTYPES[FUSED]), ((0, 0), (0, 0), (0, room - part[0].shape[1]), (0, 0)))
        for part in zip(*cache.entries, strict=True)
    )
    layers, heads, _, size = keys.shape
    tiles = keys.reshape(layers, heads, room // TILE, TILE, size).swapaxes(-1, -2)
    return replace(cache, entries=(tiles, values))


def slots(cache: Cache) -> int:
    """Positions that a packed cache has room for."""
    return cache.entries[1].shape[2]


def unpack(cache: Cache, dtype=jnp.float32) -> Cache:
    """The fixed cache of `pack` again, its values rounded to float16 by then."""
    keys, values = cache.entries
    flat = keys.swapaxes(-1, -2).reshape(values.shape)
    return replace(cache, entries=tuple((k.astype(dtype), v.astype(dtype)) for k, v in zip(flat, values, strict=True)))


def transform(model: Model, token: Int[Array, " 1"], cache: Cache, *, config: ModelConfig, inverse: np.ndarray):
    """One token → (logits float32 [1 V], the best of them int32 [1], cache with one more position). model: its layers
    `packed`."""
    keys, values = (jax.ShapeDtypeStruct(entry.shape, entry.dtype) for entry in cache.entries)
    results = (
        jax.ShapeDtypeStruct((config.vocab_size,), jnp.float32),
        jax.ShapeDtypeStruct((1,), jnp.int32),
        keys,
        values,
    )
    call = jax.ffi.ffi_call(registered("llama_jax_fused"), results, input_output_aliases={8: 2, 9: 3})
    attributes = dict(
        bias=np.int64(config.qkv_bias),
        eps=np.float32(config.norm_eps),
        feed_forward=np.int64(config.intermediate_size),
        heads=np.int64(config.num_attention_heads),
    )
    logits, best, *entries = call(*operands(model, token, cache, inverse), **attributes)
    return logits[None], best, replace(cache, entries=tuple(entries), length=cache.length + 1)


def operands(model: Model, token: Int[Array, " 1"], cache: Cache, inverse: np.ndarray) -> list[jax.Array]:
    """What the kernel is given, in its order (`native.operands`)."""
    position = cache.length - cache.pad
    cos, sin = rope.angles(position[:, None], inverse)
    head = model.embedding.weight if model.head.weight is None else model.head.weight
    layers = model.layers
    return [token, cache.length, cache.pad, cos.reshape(-1), sin.reshape(-1), model.embedding.weight.data, head.data,
            model.head.norm.weight, *cache.entries, layers.norms, layers.blocks, layers.table,
            *([] if layers.biases is None else [layers.biases])]  # fmt: skip
