"""The network in `flax.nnx`: modules hold their parameters (`nnx.Param`) and the KV cache (`nnx.Cache`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

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


def norm(config: ModelConfig, rngs: nnx.Rngs) -> nnx.Module:
    kind = nnx.LayerNorm if config.norm == "layer" else nnx.RMSNorm
    return kind(config.hidden_size, epsilon=config.norm_eps, rngs=rngs)


class Attention(nnx.Module):
    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.config = config
        for name, width in qkv_widths(config).items():
            setattr(self, name, nnx.Linear(config.hidden_size, width, use_bias=config.qkv_bias, rngs=rngs))
        mixed = config.num_attention_heads * config.head_dim
        setattr(self, names(config).o, nnx.Linear(mixed, config.hidden_size, use_bias=config.bias, rngs=rngs))
        self.key, self.value = nnx.Cache(jnp.zeros(())), nnx.Cache(jnp.zeros(()))  # `start` puts the real ones here

    def __call__(self, x, where: CallPositions):
        qkv = jnp.concatenate([getattr(self, name)(x) for name in qkv_widths(self.config)], axis=-1)
        mixed, self.key[...], self.value[...] = attend(self.config, qkv, where, self.key[...], self.value[...])
        return getattr(self, names(self.config).o)(mixed)


class FFN(nnx.Module):
    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.config = config
        for name, width in up_widths(config).items():
            setattr(self, name, nnx.Linear(config.hidden_size, width, use_bias=config.bias, rngs=rngs))
        down = nnx.Linear(config.intermediate_size, config.hidden_size, use_bias=config.bias, rngs=rngs)
        setattr(self, names(config).down, down)

    def __call__(self, x):
        up = (getattr(self, name)(x) for name in up_widths(self.config))
        return getattr(self, names(self.config).down)(activate(self.config, *up))


class Block(nnx.Module):
    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.names = name = names(config)
        setattr(self, name.attention_norm, norm(config, rngs))
        setattr(self, name.attention, Attention(config, rngs))
        setattr(self, name.ffn_norm, norm(config, rngs))
        setattr(self, name.ffn, FFN(config, rngs))

    def __call__(self, x, where: CallPositions):
        name = self.names
        x = x + getattr(self, name.attention)(getattr(self, name.attention_norm)(x), where)
        return x + getattr(self, name.ffn)(getattr(self, name.ffn_norm)(x))


class Decoder(nnx.Module):
    """Embedding, blocks, final norm; logits already where the head is tied to the embedding."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.config, name = config, names(config)
        setattr(self, name.embed, nnx.Embed(config.vocab_size, config.hidden_size, rngs=rngs))
        if config.positions == "learned":
            setattr(self, name.positions, nnx.Embed(config.max_position_embeddings, config.hidden_size, rngs=rngs))
        setattr(self, name.blocks, nnx.List([Block(config, rngs) for _ in range(config.num_hidden_layers)]))
        setattr(self, name.final_norm, norm(config, rngs))

    def __call__(self, ids, positions, where: CallPositions, every: bool):
        cfg, name = self.config, names(self.config)
        table = getattr(self, name.embed)
        x = table(ids)
        if cfg.positions == "learned":
            x = x + getattr(self, name.positions)(positions)
        for block in getattr(self, name.blocks):
            x = block(x, where)
        x = getattr(self, name.final_norm)(x if every else x[:, -1:])
        return table.attend(x) if cfg.tie_word_embeddings else x


class Transformer(nnx.Module):
    """ids [B T] → logits [B 1 V] of the last token, or [B T V] with `every`; the cache holds T more positions then."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.config = config
        setattr(self, names(config).root, Decoder(config, rngs))
        if not config.tie_word_embeddings:
            self.lm_head = nnx.Linear(config.hidden_size, config.vocab_size, use_bias=False, rngs=rngs)
        self.length, self.pad = nnx.Cache(jnp.zeros((), jnp.int32)), nnx.Cache(jnp.zeros((1,), jnp.int32))

    def __call__(self, ids, every: bool = False):
        cfg, name, t = self.config, names(self.config), ids.shape[1]
        decoder = getattr(self, name.root)
        slots = getattr(getattr(decoder, name.blocks)[0], name.attention).key[...].shape[1]
        positions, where = standing(cfg, t, slots, self.length[...], self.pad[...])
        x = decoder(ids, positions, where, every)
        self.length[...] = self.length[...] + t
        return x if cfg.tie_word_embeddings else self.lm_head(x)


def loaded(config: ModelConfig, params: dict) -> Transformer:
    """The module with these parameters; no random ones are drawn first."""
    model = nnx.eval_shape(lambda: Transformer(config, nnx.Rngs(0)))
    nnx.update(model, numbered(params))
    return model


def numbered(tree):
    """The same nested dict with the numbers of blocks as numbers, as `nnx.List` keeps them."""
    return {int(k) if k.isdigit() else k: numbered(v) for k, v in tree.items()} if isinstance(tree, dict) else tree


def nnx_step(model: Transformer, ids) -> jax.Array:
    """The greedy token [B] after ids [B T] or a token [B]; the module's cache grows by T positions."""
    return greedy(model(as_rows(ids)))


def called(
    config: ModelConfig,
    params: dict,
    dtype,
    step: Callable = nnx_step,
    place: Callable = lambda function, **options: function,
) -> Twin:
    """The module called as it is, or through `step`. The Twin's state is the module, one request at a time."""
    model = loaded(config, params)
    empty = place(partial(empty_cache, config, dtype=dtype), static_argnums=1)

    def start(pad, slots: int):
        nnx.update(model, numbered(empty(pad, slots)))
        return model

    def logits(ids, model):
        return model(ids, every=True).astype(jnp.float32)

    def pure(ids, model):
        definition, state = nnx.split(model)

        def advance(ids, state):
            again = nnx.merge(definition, state)
            return step(again, ids), nnx.state(again)

        return advance, (ids, state)

    return Twin(config, start, lambda ids, model: (step(model, ids), model), logits, pure)


def nnx_jitted(config: ModelConfig, params: dict, dtype) -> Twin:
    """`nnx.jit` around the call and the greedy choice. Its program hands back all variables, unchanged weights too, as
    copies."""
    return called(config, params, dtype, nnx.jit(nnx_step), jax.jit)


def split(config: ModelConfig, params: dict, dtype) -> Twin:
    """The module split once into its definition, parameters and cache; plain `jax.jit` merges them while it traces."""
    whole = called(config, params, dtype, place=jax.jit)
    definition, weights, _ = nnx.split(whole.start(jnp.zeros(1, jnp.int32), 1), nnx.Param, nnx.Cache)

    @jax.jit
    def split_step(definition, weights, ids, cache):
        model = nnx.merge(definition, weights, cache)
        return nnx_step(model, ids), nnx.state(model, nnx.Cache)

    return Twin(
        config,
        lambda pad, slots: nnx.state(whole.start(pad, slots), nnx.Cache),
        partial(split_step, definition, weights),
        lambda ids, cache: whole.logits(ids, nnx.merge(definition, weights, cache)),
    )
