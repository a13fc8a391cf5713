"""KV cache policies.

fixed     S slots allocated up front and written in place; positions not yet written are masked. One shape, one program.
growing   keys and values concatenated at every step, the way the original notebook did it: each length is a new shape
          and, under `jax.jit`, a new compilation. Kept to be measured.
none      only the ids are kept, in S slots; every step runs the whole sequence again.

Keys and values are kept as float32, bfloat16, float16 or int8. int8 has one float32 scale per position and head, so a
value is off by at most 1/254 of the largest of its head (bfloat16: 1/256 of its own; float16: 1/2048, up to 65,504).
Tests bound the effect on the logits: on the packaged model, after 64 cached tokens, their relative error against
float32 is below 1 % for bfloat16, 0.2 % for float16 and 5 % for int8.

Batch rows and key heads are one axis, N = B K. With two axes XLA:CPU takes the updated keys for one reshaped, and
copies all of them several times a step, donated or not: at 8,064 slots its attention takes ten times as long.

Prompts are padded on the left, so every row of a batch writes the same slot; `pad` says how many leading slots of a row
are empty, and masks and positions are derived from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax.axes import Array, Bool, Float, Int
from llama_jax.config import ModelConfig
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import shown, whole

POLICIES = ("fixed", "growing", "none")
DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16, "int8": jnp.int8}
FUSED = "f16"  # the dtype of the fused kernel's cache, whatever the model's


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerCache:
    """One layer's part of a cache, with its length: what `layer.forward` takes and gives."""

    entry: tuple[jax.Array, ...]  # (keys, values), or int8 with their scales
    length: jax.Array  # int32 scalar: slots in use


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """The cache of the tokens so far. N = B K: batch rows and key heads.

    `list(cache)` has one `LayerCache` per layer; `KVCache(layers)` joins them again.
    """

    # a layer: (keys, values) [N S h], int8 with (…, key scales, value scales) [N S 1]; a scan: [L N …]
    entries: tuple | None
    ids: jax.Array | None = None  # [B S], policy "none" only
    length: jax.Array | None = None  # int32 scalar: slots in use
    pad: jax.Array | None = None  # int32 [B]: empty leading slots of each row; None if a position mask says it

    def __post_init__(self):
        layers = self.entries
        if isinstance(layers, list | tuple) and layers and all(isinstance(part, LayerCache) for part in layers):
            object.__setattr__(self, "entries", tuple(part.entry for part in layers))
            object.__setattr__(self, "length", layers[0].length)

    def __len__(self) -> int:
        return len(self.entries or ())

    def __iter__(self) -> Iterator[LayerCache]:
        if not isinstance(self.entries, tuple) or not isinstance(self.entries[0], tuple):
            raise UserError("This cache is not kept layer by layer; use kvc.create(config), a fixed one, not stacked.")
        if self.pad is not None:
            raise UserError(
                "This cache has a pad, which the model's parts do not read; use kvc.create(config, rows=B)."
            )
        # a length each: a program of one layer may be given its cache to overwrite
        return (LayerCache(entry, jnp.copy(self.length)) for entry in self.entries)


def create(
    config: ModelConfig,
    policy: str = "fixed",
    pad: Int[Array, " B"] | None = None,
    slots: int = 512,
    dtype=jnp.float32,
    stacked: bool = False,
    *,
    rows: int = 1,
) -> KVCache:
    """An empty cache for B rows and `slots` positions (growing: zero positions). pad: as `transform` reads it; without
    it, the cache has `rows` rows for the model's parts, which read a position mask. dtype: one of `DTYPES`, or its
    name.

    Raises UserError for another policy or dtype, and for impossible rows or slots.
    """
    dtype = checked(policy, slots, rows, dtype)
    rows = rows if pad is None else pad.shape[0]
    shape = (rows * config.num_key_value_heads, 0 if policy == "growing" else slots)
    parts = [(config.head_dim, dtype)] * 2 + [(1, jnp.float32)] * (2 if dtype == jnp.int8 else 0)

    def empty(*before: int) -> tuple[jax.Array, ...]:
        return tuple(jnp.zeros((*before, *shape, width), kind) for width, kind in parts)

    if policy == "none":
        return KVCache(None, jnp.zeros((rows, slots), jnp.int32), jnp.zeros((), jnp.int32), pad)
    layers = config.num_hidden_layers
    entries = empty(layers) if stacked else tuple(empty() for _ in range(layers))
    return KVCache(entries, None, jnp.zeros((), jnp.int32), pad)


def checked(policy: str, slots: int, rows: int, dtype) -> np.dtype:
    """The dtype, if a cache can have it. Raises UserError otherwise."""
    if policy not in POLICIES:
        raise UserError(f"The cache's policy is {shown(policy)}; it must be one of {', '.join(POLICIES)}.")
    whole(slots, "slots"), whole(rows, "rows", 1)
    for name, known in DTYPES.items():
        if dtype in (name, jnp.dtype(known).name) or dtype is known or dtype == jnp.dtype(known):
            return jnp.dtype(known)
    raise UserError(f"The cache's dtype is {shown(dtype)}; it must be one of {', '.join(DTYPES)}.")


def itemsize(dtype, head_dim: int) -> float:
    """Bytes that one number of a key or value takes, the share of its scale included."""
    return jnp.dtype(dtype).itemsize + (4 / head_dim if dtype == jnp.int8 else 0)


def quantise(x: Float[Array, "N T h"]) -> tuple[jax.Array, jax.Array]:
    """(int8 [N T h], scale float32 [N T 1]): each position of each head divided by its largest value over 127."""
    wide = x.astype(jnp.float32)
    scale = jnp.max(jnp.abs(wide), axis=-1, keepdims=True) / 127
    return jnp.round(wide / jnp.where(scale > 0, scale, 1)).astype(jnp.int8), scale


def packed(entry, k, v) -> tuple[jax.Array, ...]:
    """Keys and values of this call as the entry keeps them."""
    if len(entry) == 2:
        return tuple(x.astype(entry[0].dtype) for x in (k, v))
    (keys, key_scales), (values, value_scales) = quantise(k), quantise(v)
    return keys, values, key_scales, value_scales


def unpacked(entry, dtype) -> tuple[jax.Array, jax.Array]:
    """What an entry keeps, as keys and values [N S h] of `dtype`."""
    if len(entry) == 2:
        return tuple(part.astype(dtype) for part in entry)
    keys, values, key_scales, value_scales = entry
    return (keys * key_scales).astype(dtype), (values * value_scales).astype(dtype)


def append_fixed(entry, k, v, slot):
    """Write T positions [N T h] at `slot`. Returns (keys, values, entry), all S slots of them."""
    new = packed(entry, k, v)
    entry = tuple(jax.lax.dynamic_update_slice(old, part, (0, slot, 0)) for old, part in zip(entry, new, strict=True))
    return *unpacked(entry, k.dtype), entry


def append_growing(entry, k, v, slot):
    """Concatenate T positions: the result is T longer than the entry."""
    entry = tuple(jnp.concatenate([old, part], axis=1) for old, part in zip(entry, packed(entry, k, v), strict=True))
    return *unpacked(entry, k.dtype), entry


def append_none(entry, k, v, slot):
    """Keep nothing: there are only this call's keys and values."""
    return k, v, None


APPEND = {"fixed": append_fixed, "growing": append_growing, "none": append_none}


def open_call(cache: KVCache, ids: Int[Array, "B T"]) -> tuple[jax.Array, jax.Array, int | jax.Array, KVCache]:
    """What a call must run: (ids to run [B T'], slot of the first of them, index of the last real one, cache).

    With cached keys these are the new ids only; otherwise the whole buffer with the new ids written in.
    """
    if cache.ids is None:
        return ids, cache.length, ids.shape[1] - 1, cache
    buffer = jax.lax.dynamic_update_slice(cache.ids, ids, (0, cache.length))
    return buffer, jnp.zeros((), jnp.int32), cache.length + ids.shape[1] - 1, replace(cache, ids=buffer)


def keys_seen(cache: KVCache, t: int, policy: str) -> int:
    """Number of keys that the T tokens of a call attend over: the static S of the mask."""
    if policy == "none":
        return t
    keys = jax.tree.leaves(cache.entries)[0]
    return keys.shape[-2] + (t if policy == "growing" else 0)


def causal_mask(
    slots: Int[Array, " T"], pad: Int[Array, " B"], s: int, window: int | None = None
) -> Bool[Array, "B T S"]:
    """True for the slots that a token may see: earlier ones and its own, at most `window`. A row with pad 2 and T = S =
    5:

    slot  0 1 2 3 4
    0     . . . . .      padding sees nothing
    1     . . . . .
    2     . . x . .
    3     . . x x .
    4     . . x x x
    """
    keys = jnp.arange(s, dtype=jnp.int32)
    seen = (keys[None, None, :] <= slots[None, :, None]) & (keys[None, None, :] >= pad[:, None, None])
    return seen if window is None else seen & (keys[None, None, :] > slots[None, :, None] - window)
