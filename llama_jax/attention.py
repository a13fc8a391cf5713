"""Grouped-query attention (Ainslie et al. 2023, https://arxiv.org/abs/2305.13245) over cached keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from llama_jax import kvc
from llama_jax.linear import linear

FEW = 8  # pairs of batch row and key head, and queries of each, up to which attention's products are taken apart


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Attention:
    qkv: jax.Array  # [(H+2K)*h D]: query, key and value rows, one product to wait for instead of three
    o: jax.Array  # [D H*h]
    qkv_bias: jax.Array | None = None  # [(H+2K)*h]
    o_bias: jax.Array | None = None  # [D]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Where:
    """Where in the sequence this call's tokens stand: computed once a step, read by every layer."""

    slot: jax.Array  # int32 scalar: the cache slot of the first of the T tokens
    cos: jax.Array | None  # [B 1 T h/2]; None without rotary embedding
    sin: jax.Array | None  # [B 1 T h/2]
    mask: jax.Array  # bool [B T S]: which cached positions each token may see


def attend(
    params: Attention, x: Float[Array, "B T D"], where: Where, entry, *, head_dim: int, rope: Callable, append: Callable, products: Callable
):
    """The attention block. `entry` is this layer's part of the KV cache; returns ([B T D], the entry with T more positions).

    Tokens attend over what the entry held before this call and, apart, over each other. So nothing reads the entry after it
    is written, and XLA can write it in place: reading it back makes XLA copy the whole of it, donated or not. Keys are
    rotated before they are stored, so that a cached key is never rotated again.
    """
    with jax.named_scope("attend"):
        heads = split_heads(linear(x, params.qkv, params.qkv_bias), head_dim)
        kv_heads = (heads.shape[1] - params.o.shape[1] // head_dim) // 2
        q, k, v = jnp.split(heads, (heads.shape[1] - 2 * kv_heads, heads.shape[1] - kv_heads), axis=1)
        q, k = rope(q, where.cos, where.sin), rope(k, where.cos, where.sin)
        mixed = scaled_dot_product(q, [*kvc.held(entry, k.dtype), (k, v)], where.mask, products)
        mixed, k, v = jax.lax.optimization_barrier((mixed, k, v))  # written after it was read
        return linear(merge_heads(mixed), params.o, params.o_bias), append(entry, k, v, where.slot)


def split_heads(x: Float[Array, "B T Nh"], head_dim: int) -> Float[Array, "B N T h"]:
    return x.reshape(*x.shape[:2], -1, head_dim).transpose(0, 2, 1, 3)


def merge_heads(x: Float[Array, "B N T h"]) -> Float[Array, "B T Nh"]:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def scaled_dot_product(
    q: Float[Array, "B H T h"], parts: Sequence[tuple[jax.Array, jax.Array]], mask: Bool[Array, "B T S"], products: Callable
) -> Float[Array, "B H T h"]:
    """softmax(q k^T / sqrt(h)) v with H/K query heads a key head. Scores and softmax in float32; masked scores are -inf.

    parts: keys and values [B K S_i h] of consecutive positions, S in all; they are not joined, which would copy them. A query
    that may see nothing (a padding row) gets zeros, not NaN. products: `together` or `apart`.
    """
    b, heads, t, h = q.shape
    kv_heads, dtype = parts[-1][0].shape[1], parts[-1][1].dtype
    grouped = q.reshape(b, kv_heads, -1, h)
    scores = [products("qh,sh->qs", grouped, keys, jnp.float32) for keys, _ in parts]
    scores = jnp.concatenate(scores, axis=-1).reshape(b, kv_heads, -1, t, mask.shape[-1]) * h**-0.5
    scores = jnp.where(mask[:, None, None], scores, -jnp.inf)
    top = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, 0.0))
    weights = weights / jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 1e-30)
    weights = weights.astype(dtype).reshape(b, kv_heads, -1, mask.shape[-1])
    ends = np.cumsum([keys.shape[2] for keys, _ in parts])[:-1]
    each = jnp.split(weights, ends, axis=-1)
    mixed = [products("qs,sh->qh", w, values, dtype) for w, (_, values) in zip(each, parts, strict=True)]
    return sum(mixed[1:], mixed[0]).reshape(b, heads, t, h)


def together(equation: str, x: Float[Array, "B K q a"], y: Float[Array, "B K s b"], dtype) -> Float[Array, "B K q c"]:
    """An einsum over the last two axes of every pair in the two leading ones, as one batched product: one dispatch."""
    (left, right), out = equation.split("->")[0].split(","), equation.split("->")[1]
    return jnp.einsum(f"bk{left},bk{right}->bk{out}", x, y, preferred_element_type=dtype)


def apart(equation: str, x: Float[Array, "B K q a"], y: Float[Array, "B K s b"], dtype) -> Float[Array, "B K q c"]:
    """As `together`, each pair a product of its own while they are few and small.

    For compiled programs: XLA:CPU runs a batch of small products slower than the same products one by one.
    """
    if x.shape[0] * x.shape[1] > FEW or x.shape[2] > FEW:
        return together(equation, x, y, dtype)
    rows = [[jnp.einsum(equation, x[i, j], y[i, j], preferred_element_type=dtype) for j in range(x.shape[1])] for i in range(x.shape[0])]
    return jnp.stack([jnp.stack(row) for row in rows])
