"""Small quantised models for the kernels' tests, and calls of the fused step with its cache filled at random."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax import config, quantise, transforms
from llama_jax.block_types import LAYOUTS
from llama_jax.config import RopeScaling
from llama_jax.kernels import fused
from llama_jax.kernels import packed as layers
from llama_jax.kvc import KVCache
from llama_jax.placement import parse
from tests.conftest import build
from tests.kernels import products

SMALL = dict(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=97,
    max_position_embeddings=2048,
)
LLAMA_3 = RopeScaling("llama3", 8.0, 1.0, 4.0, 64)


def small(family="llama", **changes):
    return config.tiny(family, **{**SMALL, **changes})


def random_model(cfg, seed=0):
    """Float weights: norms around one and biases around zero, so that leaving one out shows."""
    rng, params = np.random.default_rng([seed, 7]), build(cfg, seed)
    return jax.tree.map(
        lambda w: w + jnp.asarray(rng.normal(0, 0.3, w.shape), jnp.float32) if w.ndim == 1 else w, params
    )


def quantised(cfg, kind="q8_0", seed=0):
    return transforms.prepare(random_model(cfg, seed), parse(f"step+{kind}+gemv"))


def mixed(cfg):
    """A model of all types in turn, in random bytes."""
    model, turn = random_model(cfg), itertools.cycle(sorted(LAYOUTS))

    def matrix(n, k):
        return products.weight(kind := next(turn), n, k, seed=n, scale=0.03 / LAYOUTS[kind].columns ** 0.5)

    d, f, queries = cfg.hidden_size, cfg.intermediate_size, cfg.num_attention_heads * cfg.head_dim
    keys = cfg.num_key_value_heads * cfg.head_dim

    def changed(layer):
        qkv = quantise.Joined((matrix(queries, d), matrix(keys, d), matrix(keys, d)))
        attention = replace(layer.attention, qkv=qkv, o=matrix(d, queries))
        gate_up = quantise.Joined((matrix(f, d), matrix(f, d)))
        return replace(layer, attention=attention, ffn=replace(layer.ffn, gate_up=gate_up, down=matrix(d, f)))

    layers = tuple(map(changed, model.layers))
    table = products.weight("q6_k", cfg.vocab_size, d, scale=0.01)
    return replace(model, embeddings=replace(model.embeddings, weight=table), layers=layers)


def with_packed_layers(model):
    return replace(model, layers=layers.pack(model.layers))


def random_cache(cfg, slots, slot, pad, seed=0):
    """(keys, values) float16 [L, K, S, h], random in pad…slot-1, NaN where nothing may look, and the same as the kernel
    keeps it."""
    rng, shape = (
        np.random.default_rng([seed, 9]),
        (2, cfg.num_hidden_layers, cfg.num_key_value_heads, slots, cfg.head_dim),
    )
    both = rng.standard_normal(shape).astype(np.float16)
    both[..., :pad, :] = both[..., slot:, :] = np.nan
    return both, packed(both, slot, pad)


def packed(both, slot, pad):
    """As the kernel keeps it: by position. both: [2, L, B K, S, h] by slot; pad: of one sequence, or of each."""
    pads = np.repeat(np.atleast_1d(pad), both.shape[2] // np.size(pad))
    moved = [
        [np.roll(both[:, layer, head], -by, axis=1) for head, by in enumerate(pads)] for layer in range(both.shape[1])
    ]
    keys, values = jnp.asarray(np.array(moved).transpose(2, 0, 1, 3, 4))
    layers, heads, slots, size = keys.shape
    room = -(-slots // fused.TILE) * fused.TILE
    keys, values = (jnp.pad(part, ((0, 0), (0, 0), (0, room - slots), (0, 0))) for part in (keys, values))
    tiles = keys.reshape(layers, heads, room // fused.TILE, fused.TILE, size).swapaxes(-1, -2)
    return KVCache((tiles, values), None, jnp.int32(slot), jnp.asarray(np.atleast_1d(pad), jnp.int32))


def unpacked(cache):
    """Keys and values float16 [2, L, B K, S, h] by slot."""
    keys, values = cache.entries
    both = np.stack([np.asarray(keys.swapaxes(-1, -2).reshape(values.shape)), np.asarray(values)])
    pads = np.repeat(np.asarray(cache.pad), both.shape[2] // len(cache.pad))
    return np.stack([np.roll(both[:, :, head], by, axis=2) for head, by in enumerate(pads)], axis=2)


def rows_program(cfg, logits="last"):
    """The fused step as one jitted program: (model, ids [B T], cache) → (logits, best, cache)."""
    jitted = jax.jit(partial(fused.transform, config=cfg, logits=logits))
    return lambda model, ids, cache: jitted(with_packed_layers(model), ids, cache)


def program(cfg):
    """Of one token: (model, token [1], cache) → (logits, best, cache)."""
    run = rows_program(cfg)
    return lambda model, token, cache: run(model, token[:, None], cache)
