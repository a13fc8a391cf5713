"""KV cache policies.

fixed     S slots allocated up front and written in place; positions not yet written are masked. One shape, one program.
growing   keys and values concatenated at every step, the way the original notebook did it: each length is a new shape
          and, under `jax.jit`, a new compilation. Kept as a subject.
none      no keys are kept: the ids are, in S slots, and every step runs the whole sequence again.

Prompts are padded on the left, so every row of a batch writes the same slot; `pad` says how many leading slots of a row
are empty, and masks and positions are derived from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from llama_jax.config import ModelConfig

POLICIES = ("fixed", "growing", "none")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    entries: tuple | tuple[jax.Array, jax.Array] | None  # a layer: (keys, values) [B K S h]; stacked over L for a layer scan
    ids: jax.Array | None  # [B S], policy "none" only
    length: jax.Array  # int32 scalar: slots in use
    pad: jax.Array  # int32 [B]: empty leading slots of each row


def create(config: ModelConfig, policy: str, pad: Int[Array, " B"], slots: int, dtype, stacked: bool = False) -> Cache:
    """An empty cache for B rows and `slots` positions (growing: zero positions)."""
    shape = (pad.shape[0], config.num_key_value_heads, 0 if policy == "growing" else slots, config.head_dim)
    if policy == "none":
        entries = None
    elif stacked:
        entries = tuple(jnp.zeros((config.num_hidden_layers, *shape), dtype) for _ in "kv")
    else:
        entries = tuple((jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(config.num_hidden_layers))
    ids = jnp.zeros((pad.shape[0], slots), jnp.int32) if policy == "none" else None
    return Cache(entries, ids, jnp.zeros((), jnp.int32), pad)


def append_fixed(entry, k, v, slot):
    """Write T positions at `slot`. Returns (keys, values, entry), all S slots of them."""
    start = (0, 0, slot, 0)
    keys, values = (jax.lax.dynamic_update_slice(old, new, start) for old, new in zip(entry, (k, v), strict=True))
    return keys, values, (keys, values)


def append_growing(entry, k, v, slot):
    """Concatenate T positions: the result is T longer than the entry."""
    keys, values = (jnp.concatenate([old, new], axis=2) for old, new in zip(entry, (k, v), strict=True))
    return keys, values, (keys, values)


def append_none(entry, k, v, slot):
    """Keep nothing: this call's own keys and values are all there is."""
    return k, v, None


APPEND = {"fixed": append_fixed, "growing": append_growing, "none": append_none}


def open_call(cache: Cache, ids: Int[Array, "B T"]) -> tuple[jax.Array, jax.Array, int | jax.Array, Cache]:
    """What a call must run: (ids to run [B T'], slot of the first of them, index of the last real one, cache).

    With kept keys these are the new ids alone; without, the whole buffer with the new ids written in.
    """
    if cache.ids is None:
        return ids, cache.length, ids.shape[1] - 1, cache
    buffer = jax.lax.dynamic_update_slice(cache.ids, ids, (0, cache.length))
    return buffer, jnp.zeros((), jnp.int32), cache.length + ids.shape[1] - 1, replace(cache, ids=buffer)


def keys_seen(cache: Cache, t: int, policy: str) -> int:
    """Number of keys that the T tokens of a call attend over: the static S of the mask."""
    if policy == "none":
        return t
    keys = jax.tree.leaves(cache.entries)[0]
    return keys.shape[-2] + (t if policy == "growing" else 0)


def causal_mask(slots: Int[Array, " T"], pad: Int[Array, " B"], s: int) -> Bool[Array, "B T S"]:
    """True where a token may look. Row of a sequence with pad 2 and T = S = 5:

    slot  0 1 2 3 4
    0     . . . . .      padding sees nothing
    1     . . . . .
    2     . . x . .
    3     . . x x .
    4     . . x x x
    """
    keys = jnp.arange(s, dtype=jnp.int32)
    return (keys[None, None, :] <= slots[None, :, None]) & (keys[None, None, :] >= pad[:, None, None])
