"""The network in `flax.nnx`: modules hold their parameters (`nnx.Param`) and the KV cache (`nnx.Cache`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from llama_jax.attention import CallPositions
from llama_jax.config import ModelConfig
from llama_lab.peers import flax


def norm(config: ModelConfig, rngs: nnx.Rngs) -> nnx.Module:
    kind = nnx.LayerNorm if config.norm == "layer" else nnx.RMSNorm
    return kind(config.hidden_size, epsilon=config.norm_eps, rngs=rngs)


class Part(nnx.Module):
    """A module whose parts have the checkpoint's names. call(config, part, …): what it does with them, `part` by
    name."""

    call: Callable

    def __init__(self, config: ModelConfig, **parts: nnx.Module):
        self.config = config
        for name, part in parts.items():
            setattr(self, name, part)

    def __call__(self, *arguments):
        return self.call(self.config, partial(getattr, self), *arguments)


class Attention(Part):
    call = staticmethod(flax.attend)

    def __init__(self, config: ModelConfig, **parts: nnx.Module):
        super().__init__(config, **parts)
        self.key, self.value = nnx.Cache(jnp.zeros(())), nnx.Cache(jnp.zeros(()))  # `start` puts the real ones here

    def __call__(self, x, where: CallPositions):
        x, self.key[...], self.value[...] = super().__call__(x, where, self.key[...], self.value[...])
        return x


class FFN(Part):
    call = staticmethod(flax.feed_forward)


class Block(Part):
    call = staticmethod(flax.block)


class Decoder(Part):
    @staticmethod
    def call(config: ModelConfig, part: Callable, ids, positions, where: CallPositions, every: bool):
        def blocks(x, where: CallPositions):
            for block in part(flax.names(config).blocks):
                x = block(x, where)
            return x

        return flax.decoder(config, part, blocks, ids, positions, where, every)


def products(layers: dict, rngs: nnx.Rngs) -> dict[str, nnx.Module]:
    """Those of `flax.attention_layers` or `flax.ffn_layers`."""
    return {
        name: nnx.Linear(inputs, outputs, use_bias=bias, rngs=rngs) for name, (inputs, outputs, bias) in layers.items()
    }


def block(config: ModelConfig, rngs: nnx.Rngs) -> Block:
    names = flax.names(config)
    parts = {
        names.attention_norm: norm(config, rngs),
        names.attention: Attention(config, **products(flax.attention_layers(config), rngs)),
        names.ffn_norm: norm(config, rngs),
        names.ffn: FFN(config, **products(flax.ffn_layers(config), rngs)),
    }
    return Block(config, **parts)


class Transformer(nnx.Module):
    """ids [B T] → logits [B 1 V] of the last token, or [B T V] with `every`; the cache holds T more positions then."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        self.config, names = config, flax.names(config)
        parts = {names.embed: nnx.Embed(config.vocab_size, config.hidden_size, rngs=rngs)}
        if config.positions == "learned":
            parts[names.positions] = nnx.Embed(config.max_position_embeddings, config.hidden_size, rngs=rngs)
        blocks = nnx.List([block(config, rngs) for _ in range(config.num_hidden_layers)])
        parts |= {names.blocks: blocks, names.final_norm: norm(config, rngs)}
        setattr(self, names.root, Decoder(config, **parts))
        if not config.tie_word_embeddings:
            self.lm_head = nnx.Linear(config.hidden_size, config.vocab_size, use_bias=False, rngs=rngs)
        self.length, self.pad = nnx.Cache(jnp.zeros((), jnp.int32)), nnx.Cache(jnp.zeros((1,), jnp.int32))

    def __call__(self, ids, every: bool = False):
        cfg, names, t = self.config, flax.names(self.config), ids.shape[1]
        decoder = getattr(self, names.root)
        slots = getattr(getattr(decoder, names.blocks)[0], names.attention).key[...].shape[1]
        positions, where = flax.standing(cfg, t, slots, self.length[...], self.pad[...])
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
    return flax.greedy(model(flax.as_rows(ids)))


def called(
    config: ModelConfig,
    params: dict,
    dtype,
    step: Callable = nnx_step,
    place: Callable = lambda function, **options: function,
) -> flax.Twin:
    """The module called as it is, or through `step`. The twin's state is the module, one request at a time."""
    model = loaded(config, params)
    empty = place(partial(flax.empty_cache, config, dtype=dtype), static_argnums=1)

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

    return flax.Twin(config, start, lambda ids, model: (step(model, ids), model), logits, pure)


def nnx_jitted(config: ModelConfig, params: dict, dtype) -> flax.Twin:
    """`nnx.jit` around the call and the greedy choice. Its program hands back all variables, unchanged weights too, as
    copies."""
    return called(config, params, dtype, nnx.jit(nnx_step), jax.jit)


def split(config: ModelConfig, params: dict, dtype) -> flax.Twin:
    """The module split once into its definition, parameters and cache; plain `jax.jit` merges them while it traces."""
    whole = called(config, params, dtype, place=jax.jit)
    definition, weights, _ = nnx.split(whole.start(jnp.zeros(1, jnp.int32), 1), nnx.Param, nnx.Cache)

    @jax.jit
    def split_step(definition, weights, ids, cache):
        model = nnx.merge(definition, weights, cache)
        return nnx_step(model, ids), nnx.state(model, nnx.Cache)

    return flax.Twin(
        config,
        lambda pad, slots: nnx.state(whole.start(pad, slots), nnx.Cache),
        partial(split_step, definition, weights),
        lambda ids, cache: whole.logits(ids, nnx.merge(definition, weights, cache)),
    )
