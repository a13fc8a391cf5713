"""The network in `flax.linen`: parameters and the KV cache (a "cache" collection) live outside the modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn

from llama_jax.attention import CallPositions
from llama_jax.config import ModelConfig
from llama_lab.peers.flax import (
    Twin,
    activate,
    as_rows,
    attend,
    empty_cache,
    greedy,
    names,
    qkv_widths,
    standing,
    up_widths,
)


def norm(config: ModelConfig, name: str) -> nn.Module:
    kind = nn.LayerNorm if config.norm == "layer" else nn.RMSNorm
    return kind(epsilon=config.norm_eps, name=name)


class Attention(nn.Module):
    config: ModelConfig

    @nn.compact
    def __call__(self, x, where: CallPositions):
        cfg = self.config
        qkv = [nn.Dense(width, use_bias=cfg.qkv_bias, name=name)(x) for name, width in qkv_widths(cfg).items()]
        cached = (self.get_variable("cache", name) for name in ("key", "value"))
        mixed, keys, values = attend(cfg, jnp.concatenate(qkv, axis=-1), where, *cached)
        self.put_variable("cache", "key", keys)
        self.put_variable("cache", "value", values)
        return nn.Dense(cfg.hidden_size, use_bias=cfg.bias, name=names(cfg).o)(mixed)


class FFN(nn.Module):
    config: ModelConfig

    @nn.compact
    def __call__(self, x):
        cfg = self.config
        up = (nn.Dense(width, use_bias=cfg.bias, name=name)(x) for name, width in up_widths(cfg).items())
        return nn.Dense(cfg.hidden_size, use_bias=cfg.bias, name=names(cfg).down)(activate(cfg, *up))


class Block(nn.Module):
    config: ModelConfig

    @nn.compact
    def __call__(self, x, where: CallPositions):
        cfg, name = self.config, names(self.config)
        x = x + Attention(cfg, name=name.attention)(norm(cfg, name.attention_norm)(x), where)
        return x + FFN(cfg, name=name.ffn)(norm(cfg, name.ffn_norm)(x))


class Blocks(nn.Module):
    config: ModelConfig

    @nn.compact
    def __call__(self, x, where: CallPositions):
        for i in range(self.config.num_hidden_layers):
            x = Block(self.config, name=str(i))(x, where)
        return x


class Decoder(nn.Module):
    """Embedding, blocks, final norm; logits already where the head is tied to the embedding."""

    config: ModelConfig

    @nn.compact
    def __call__(self, ids, positions, where: CallPositions, every: bool):
        cfg, name = self.config, names(self.config)
        table = nn.Embed(cfg.vocab_size, cfg.hidden_size, name=name.embed)
        x = table(ids)
        if cfg.positions == "learned":
            x = x + nn.Embed(cfg.max_position_embeddings, cfg.hidden_size, name=name.positions)(positions)
        x = Blocks(cfg, name=name.blocks)(x, where)
        x = norm(cfg, name.final_norm)(x if every else x[:, -1:])
        return table.attend(x) if cfg.tie_word_embeddings else x


class Transformer(nn.Module):
    """ids [B T] → logits [B 1 V] of the last token, or [B T V] with `every`; the cache holds T more positions then."""

    config: ModelConfig

    @nn.compact
    def __call__(self, ids, slots: int, every: bool = False):
        cfg, t = self.config, ids.shape[1]
        length, pad = (self.get_variable("cache", name) for name in ("length", "pad"))
        positions, where = standing(cfg, t, slots, length, pad)
        x = Decoder(cfg, name=names(cfg).root)(ids, positions, where, every)
        self.put_variable("cache", "length", length + t)
        return x if cfg.tie_word_embeddings else nn.Dense(cfg.vocab_size, use_bias=False, name="lm_head")(x)


def run(model: Transformer, params, ids, cache, every: bool = False):
    """(logits, cache) by `apply`."""
    keys = jax.tree.leaves(cache[names(model.config).root])[0]
    logits, changed = model.apply({"params": params, "cache": cache}, ids, keys.shape[1], every, mutable=["cache"])
    return logits, changed["cache"]


def applied(config: ModelConfig, params: dict, dtype, place: Callable = lambda function, **options: function):
    """Un-jitted `apply`, unless `place` puts jit around it. Returns a Twin."""
    model = Transformer(config)

    def start(pad, slots: int):
        return empty_cache(config, pad, slots, dtype)

    def linen_step(params, ids, cache):
        logits, cache = run(model, params, as_rows(ids), cache)
        return greedy(logits), cache

    def logits(ids, cache):
        return run(model, params, ids, cache, every=True)[0].astype(jnp.float32)

    return Twin(config, place(start, static_argnums=1), partial(place(linen_step), params), logits)


def jitted(config: ModelConfig, params: dict, dtype) -> Twin:
    """`jax.jit` around `apply` and the greedy choice."""
    return applied(config, params, dtype, jax.jit)
