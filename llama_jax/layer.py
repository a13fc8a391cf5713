"""One transformer layer: attention and feed-forward, each after a norm and around a residual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from llama_jax import attention, kvc, rope
from llama_jax.attention import Attention, CallPositions
from llama_jax.axes import Array, Bool, Float
from llama_jax.config import ModelConfig
from llama_jax.embeddings import demanded
from llama_jax.ffn import FFN, FFNS
from llama_jax.kvc import LayerCache
from llama_jax.norm import Norm, normaliser
from llama_jax.plumbing.errors import UserError
from llama_jax.rope import Rope
from llama_jax.taps import untapped


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layer:
    attention_norm: Norm
    attention: Attention
    ffn_norm: Norm
    ffn: FFN
    attention_post_norm: Norm | None = None  # of what attention gives, before it is added
    ffn_post_norm: Norm | None = None


def layer(
    params: Layer,
    x: Float[Array, "B T D"],
    where: CallPositions,
    entry,
    *,
    norm: Callable,
    attend: Callable,
    ffn: Callable,
    tap: Callable = untapped,
):
    """x → ([B T D], this layer's cache entry with T more positions). `tap` sees the points named in `taps`."""
    with jax.named_scope("layer"):
        x = tap("resid_pre", x)
        mixed, entry = attend(params.attention, norm(params.attention_norm, x), where, entry)
        if params.attention_post_norm is not None:
            mixed = norm(params.attention_post_norm, mixed)
        x = tap("resid_mid", x + tap("attn_out", mixed))
        added = ffn(params.ffn, norm(params.ffn_norm, x))
        if params.ffn_post_norm is not None:
            added = norm(params.ffn_post_norm, added)
        return tap("resid_post", x + tap("mlp_out", added)), entry


def assembled(
    config: ModelConfig,
    norm: Callable,
    append: Callable,
    place: Callable = lambda name, function: function,
    tap: Callable = untapped,
) -> Callable:
    """layer(params, x, where, entry) of this model, with each function in it passed through place(name, function).

    append: one of `kvc.APPEND`.
    """
    rotate = place("rope", rope.rotate)
    parts = attention.Parts(config.head_dim, norm, rotate, append, config.attention_scale, tap)
    attend = partial(attention.attend, parts=parts)
    ffn = place("ffn", FFNS[config.hidden_act])
    return place("layer", partial(layer, norm=norm, attend=place("attend", attend), ffn=ffn, tap=tap))


def forward(
    config: ModelConfig,
    params: Layer,
    rotation: Rope,
    mask: Bool[Array, "B W"],
    x: Float[Array, "B T D"],
    layer_cache: LayerCache,
) -> tuple[Float[Array, "B T D"], LayerCache]:
    """One layer of a step that you compose yourself: (x, the layer's cache with T more positions).

    rotation: `model.create(config).rope`, or `rope.create(config, i)` for layer i if layers differ. mask: from
    `attention.attention_mask`.
    Raises UserError for a mask or a cache that does not fit, and for a full cache. Inside `jax.jit` the length of a
    cache cannot be checked: positions past its last slot give NaN there.
    """
    if rotation is None:
        raise UserError("There is no rope; model.create(config) makes it, or rope.create(config, i) if layers differ.")
    check(config, mask, x, layer_cache)
    slot, (t, slots) = layer_cache.length, (x.shape[1], layer_cache.entry[0].shape[1])
    words = "The cache has {} slots, {} of them in use; create it with slots={} or more."
    x = demanded(x, slot + t <= slots, lambda: words.format(slots, slot, slot + t))
    where = call_positions(rotation, mask, slot, t, slots)
    x, entry = assembled(config, normaliser(config), kvc.append_fixed)(params, x, where, layer_cache.entry)
    return x, LayerCache(entry, slot + t)


def check(config: ModelConfig, mask, x, layer_cache: LayerCache) -> None:
    """Raises UserError if the mask, the tokens and the cache do not belong to the same call and model."""
    if x.ndim != 3 or x.shape[2] != config.hidden_size:
        raise UserError(f"x is {list(x.shape)}; it must be [B T {config.hidden_size}], as embeddings.forward gives it.")
    if not isinstance(layer_cache, LayerCache):
        raise UserError(
            f"The layer's cache is a {type(layer_cache).__name__}; list(kvc.create(config)) has one a layer."
        )
    if mask.ndim != 2 or mask.dtype != bool:
        raise UserError(f"The mask is {mask.dtype}{list(mask.shape)}; make it bool [B W] by attention.attention_mask.")
    rows, t, _ = x.shape
    if mask.shape[0] != rows or 1 < t > mask.shape[1]:
        raise UserError(f"The attention mask is {list(mask.shape)}, but x has {rows} rows of {t} tokens.")
    n, slots, size = layer_cache.entry[0].shape
    if (n, size) != (rows * config.num_key_value_heads, config.head_dim):
        raise UserError(
            f"The cache has {n} rows of heads of {size} numbers, this call needs {rows * config.num_key_value_heads} of"
            f" {config.head_dim}; create it with kvc.create(config, rows={rows})."
        )
    if mask.shape[1] > slots:
        raise UserError(
            f"The attention mask has {mask.shape[1]} positions, the cache {slots} slots; create it with slots= of more."
        )


def call_positions(rotation: Rope, mask: Bool[Array, "B W"], slot, t: int, slots: int) -> CallPositions:
    """Positions of the T tokens of a call that begins at `slot`, and what each may see of a cache of `slots`."""
    real = jnp.pad(mask, ((0, 0), (0, slots - mask.shape[1])), constant_values=True)
    queries = slot + jnp.arange(t, dtype=jnp.int32)
    seen = (jnp.arange(slots) <= queries[:, None]) & real[:, None]
    if rotation.inverse is None and rotation.window is None:
        return CallPositions(slot, None, None, seen)
    counted = jnp.maximum(jnp.cumsum(real, axis=1, dtype=jnp.int32) - 1, 0)
    positions = jax.lax.dynamic_slice_in_dim(counted, slot, t, axis=1)
    if rotation.window is not None:
        seen = seen & (counted[:, None] > positions[..., None] - rotation.window)
    return CallPositions(slot, *rope.turned(rotation, positions), seen)
