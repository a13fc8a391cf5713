"""Grouped-query attention (Ainslie et al. 2023, https://arxiv.org/abs/2305.13245) over cached keys and values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from llama_jax.axes import Array, Bool, Float, Int
from llama_jax.config import ModelConfig
from llama_jax.linear import linear
from llama_jax.norm import Norm
from llama_jax.plumbing.errors import UserError
from llama_jax.taps import untapped


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Attention:
    qkv: jax.Array  # [(H+2K)*h D]: query, key and value rows, one product to wait for instead of three
    o: jax.Array  # [D H*h]
    qkv_bias: jax.Array | None = None  # [(H+2K)*h]
    o_bias: jax.Array | None = None  # [D]
    q_norm: Norm | None = None  # [h], of each head of the queries
    k_norm: Norm | None = None  # [h], of each head of the keys


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CallPositions:
    """Positions of this call's tokens in the sequence: computed once per step, read by every layer."""

    slot: jax.Array  # int32 scalar: the cache slot of the first of the T tokens
    cos: jax.Array | None  # [B 1 T r/2], of the first r numbers of a head; None if nothing is rotated
    sin: jax.Array | None  # [B 1 T r/2]
    mask: jax.Array  # bool [B T S]: which cached positions each token may see


@dataclass(frozen=True)
class Parts:
    """What `attend` is composed of."""

    head_dim: int
    norm: Callable
    rope: Callable
    append: Callable  # one of `kvc.APPEND`
    scale: float | None = None  # of the scores; None: head_dim ** -0.5
    tap: Callable = untapped


def attention_mask(config: ModelConfig, position_mask: Int[Array, "B W"]) -> Bool[Array, "B W"]:
    """True if a position holds a token, False if it holds padding. All positions after these W hold tokens.

    position_mask: 1 or 0, a row per sequence; padding may be anywhere, and positions do not count it. `layer.forward`
    adds the causal part, which depends on the position of a call's tokens in the cache.
    Raises UserError for a mask of another shape or kind, or longer than the model's context.
    """
    shape, dtype = getattr(position_mask, "shape", ()), getattr(position_mask, "dtype", type(position_mask).__name__)
    if len(shape) != 2 or not (jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_)):
        raise UserError(f"The position mask is {dtype}{list(shape)}; it must be 1 or 0 for each token id, int32 [B T].")
    if shape[1] > config.max_position_embeddings:
        raise UserError(f"The position mask has {shape[1]} positions, the model {config.max_position_embeddings}.")
    return jnp.asarray(position_mask, bool)


def attend(
    params: Attention,
    x: Float[Array, "B T D"],
    where: CallPositions,
    entry,
    *,
    parts: Parts,
):
    """The attention block. `entry` is this layer's part of the KV cache; returns ([B T D], the entry with T more
    positions).

    Keys are normed and rotated before they are stored, so that a cached key is never rotated again.
    """
    with jax.named_scope("attend"):
        heads, tap = split_heads(linear(x, params.qkv, params.qkv_bias), parts.head_dim), parts.tap
        kv_heads = (heads.shape[1] - params.o.shape[1] // parts.head_dim) // 2
        queries, keys, values = jnp.split(heads, (heads.shape[1] - 2 * kv_heads, heads.shape[1] - kv_heads), axis=1)
        if params.q_norm is not None:
            queries, keys = parts.norm(params.q_norm, queries), parts.norm(params.k_norm, keys)
        queries, keys, values = tap("q", queries), tap("k", keys), tap("v", values)
        if where.cos is not None:
            queries, keys = parts.rope(queries, where.cos, where.sin), parts.rope(keys, where.cos, where.sin)
        keys, values, entry = parts.append(entry, merge_rows(keys), merge_rows(values), where.slot)
        mixed = scaled_dot_product(queries, keys, values, where.mask, tap, parts.scale)
        return linear(merge_heads(mixed), params.o, params.o_bias), entry


def split_heads(x: Float[Array, "B T Nh"], head_dim: int) -> Float[Array, "B N T h"]:
    return x.reshape(*x.shape[:2], -1, head_dim).transpose(0, 2, 1, 3)


def merge_heads(x: Float[Array, "B N T h"]) -> Float[Array, "B T Nh"]:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def merge_rows(x: Float[Array, "B K T h"]) -> Float[Array, "N T h"]:
    """Batch rows and key heads as one axis, as the cache has them."""
    return x.reshape(-1, *x.shape[2:])


def scaled_dot_product(
    queries: Float[Array, "B H T h"],
    keys: Float[Array, "N S h"],
    values: Float[Array, "N S h"],
    mask: Bool[Array, "B T S"],
    tap: Callable = untapped,
    scale: float | None = None,
) -> Float[Array, "B H T h"]:
    """softmax(queries keys^T scale) values with H/K query heads per key head, N = B K. scale: by default h ** -0.5.

    Scores and softmax are in float32, masked scores -inf.
    A query that may not see anything (a padding row) gets zeros, not NaN.
    """
    b, heads, t, h = queries.shape
    n, s = keys.shape[:2]
    grouped = queries.reshape(n, -1, h)
    scale = h**-0.5 if scale is None else scale
    scores = jnp.einsum("nqh,nsh->nqs", grouped, keys, preferred_element_type=jnp.float32) * scale
    scores = jnp.where(mask[:, None, None], scores.reshape(b, n // b, -1, t, s), -jnp.inf)
    top = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, 0.0))
    weights = tap("pattern", weights / jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 1e-30))
    weights = weights.astype(values.dtype).reshape(n, -1, s)
    return jnp.einsum("nqs,nsh->nqh", weights, values, preferred_element_type=values.dtype).reshape(b, heads, t, h)
