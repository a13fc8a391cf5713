"""The model: a pytree of weights, and `transform` = embed → layers → head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax import kvc, rope
from llama_jax.attention import Where
from llama_jax.axes import Array, Int
from llama_jax.embeddings import Embedding
from llama_jax.head import Head
from llama_jax.kvc import Cache
from llama_jax.layer import Layer


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Model:
    embedding: Embedding
    layers: tuple[Layer, ...] | Layer  # a tuple (unrolled), or one Layer whose leaves carry a leading L axis (scan)
    head: Head


def transform(
    model: Model,
    ids: Int[Array, "B T"],
    cache: Cache,
    *,
    inverse: np.ndarray | None,
    policy: str,
    embed: Callable,
    layers: Callable,
    head: Callable,
    every: bool = False,
):
    """ids → (logits float32 [B V] of the last token, or [B T V] with `every`; cache with T more positions).

    inverse: rotary frequencies [h/2], None for a model with learned positions. policy: a KV cache policy (`kvc.POLICIES`).
    layers: how the stack is run.
    """
    t = ids.shape[1]
    ids, slot, last, opened = kvc.open_call(cache, ids)
    slots = slot + jnp.arange(ids.shape[1], dtype=jnp.int32)
    positions = jnp.maximum(slots[None, :] - cache.pad[:, None], 0)
    mask = kvc.causal_mask(slots, cache.pad, kvc.keys_seen(cache, ids.shape[1], policy))
    rotation = (None, None) if inverse is None else rope.angles(positions, inverse)
    where = Where(slot, *rotation, mask)
    x, entries = layers(model.layers, embed(model.embedding, ids, positions), where, opened.entries)
    if not every:
        x = jax.lax.dynamic_slice_in_dim(x, last, 1, axis=1)
    vocabulary = model.embedding.weight if model.head.weight is None else model.head.weight
    logits = head(model.head, vocabulary, x)
    return logits if every else logits[:, 0], replace(opened, entries=entries, length=cache.length + t)


def unrolled(layers: tuple[Layer, ...], x, where: Where, entries, *, layer: Callable):
    """Run the layers one after the other, each its own code."""
    done = []
    for i, params in enumerate(layers):
        x, entry = layer(params, x, where, None if entries is None else entries[i])
        done.append(entry)
    return x, None if entries is None else tuple(done)


def scanned(layers: Layer, x, where: Where, entries, *, layer: Callable):
    """Run the layers as one `lax.scan` over stacked weights: one body to compile, however deep the model."""

    def body(x, each):
        params, entry = each
        return layer(params, x, where, entry)

    return jax.lax.scan(body, x, (layers, entries))


LAYERS = {"unrolled": unrolled, "scan": scanned}


def stack(model: Model) -> Model:
    """The same weights with all layers stacked along a leading L axis, for `scanned`."""
    return replace(model, layers=jax.tree.map(lambda *leaves: jnp.stack(leaves), *model.layers))


def cast(model: Model, dtype) -> Model:
    """The same model with every weight in `dtype`."""
    return jax.tree.map(lambda w: w.astype(dtype), model)
