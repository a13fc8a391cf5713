"""The network in `flax.linen`: parameters and the KV cache (a "cache" collection) live outside the modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn

from llama_jax.attention import CallPositions
from llama_jax.config import ModelConfig
from llama_lab.peers import flax


def dense(layers: dict, name: str) -> nn.Dense:
    """A product of `flax.attention_layers` or `flax.ffn_layers`."""
    _, width, bias = layers[name]
    return nn.Dense(width, use_bias=bias, name=name)


def norm(config: ModelConfig, name: str) -> nn.Module:
    kind = nn.LayerNorm if config.norm == "layer" else nn.RMSNorm
    return kind(epsilon=config.norm_eps, name=name)


class Attention(nn.Module):
    config: ModelConfig

    @nn.compact
    def __call__(self, x, where: CallPositions):
        layer = partial(dense, flax.attention_layers(self.config))
        cached = (self.get_variable("cache", name) for name in ("key", "value"))
        x, keys, values = flax.attend(self.config, layer, x, where, *cached)
        self.put_variable("cache", "key", keys)
        self.put_variable("cache", "value", values)
        return x


class FFN(nn.Module):
    config: ModelConfig

    @nn.compact
    def __call__(self, x):
        return flax.feed_forward(self.config, partial(dense, flax.ffn_layers(self.config)), x)


class Block(nn.Module):
    config: ModelConfig

    @nn.compact
    def __call__(self, x, where: CallPositions):
        kinds = {flax.names(self.config).attention: Attention, flax.names(self.config).ffn: FFN}
        return flax.block(self.config, lambda name: kinds.get(name, norm)(self.config, name=name), x, where)


class Blocks(nn.Module):
    config: ModelConfig

    @nn.compact
    def __call__(self, x, where: CallPositions):
        for i in range(self.config.num_hidden_layers):
            x = Block(self.config, name=str(i))(x, where)
        return x


class Decoder(nn.Module):
    config: ModelConfig

    @nn.compact
    def __call__(self, ids, positions, where: CallPositions, every: bool):
        cfg, names = self.config, flax.names(self.config)
        sizes = {names.embed: cfg.vocab_size, names.positions: cfg.max_position_embeddings}

        def part(name: str) -> nn.Module:
            return nn.Embed(sizes[name], cfg.hidden_size, name=name) if name in sizes else norm(cfg, name)

        return flax.decoder(cfg, part, Blocks(cfg, name=names.blocks), ids, positions, where, every)


class Transformer(nn.Module):
    """ids [B T] → logits [B 1 V] of the last token, or [B T V] with `every`; the cache holds T more positions then."""

    config: ModelConfig

    @nn.compact
    def __call__(self, ids, slots: int, every: bool = False):
        cfg, t = self.config, ids.shape[1]
        length, pad = (self.get_variable("cache", name) for name in ("length", "pad"))
        positions, where = flax.standing(cfg, t, slots, length, pad)
        x = Decoder(cfg, name=flax.names(cfg).root)(ids, positions, where, every)
        self.put_variable("cache", "length", length + t)
        return x if cfg.tie_word_embeddings else nn.Dense(cfg.vocab_size, use_bias=False, name="lm_head")(x)


def run(model: Transformer, params, ids, cache, every: bool = False):
    """(logits, cache) by `apply`."""
    keys = jax.tree.leaves(cache[flax.names(model.config).root])[0]
    logits, changed = model.apply({"params": params, "cache": cache}, ids, keys.shape[1], every, mutable=["cache"])
    return logits, changed["cache"]


def applied(
    config: ModelConfig, params: dict, dtype, place: Callable = lambda function, **options: function
) -> flax.Twin:
    """Un-jitted `apply`, unless `place` puts jit around it."""
    model = Transformer(config)

    def start(pad, slots: int):
        return flax.empty_cache(config, pad, slots, dtype)

    def linen_step(params, ids, cache):
        logits, cache = run(model, params, flax.as_rows(ids), cache)
        return flax.greedy(logits), cache

    def logits(ids, cache):
        return run(model, params, ids, cache, every=True)[0].astype(jnp.float32)

    return flax.Twin(config, place(start, static_argnums=1), partial(place(linen_step), params), logits)


def jitted(config: ModelConfig, params: dict, dtype) -> flax.Twin:
    """`jax.jit` around `apply` and the greedy choice."""
    return applied(config, params, dtype, jax.jit)
