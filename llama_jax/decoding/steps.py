"""From a prompt to its first token, and from one token to the next, through `transform` and `sample`; jit is unknown.

A module that makes steps in another way offers the same three functions: `arranged`, `new_cache` and `steps`
(`kernels/fused_steps.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from llama_jax import kvc, model, sampling
from llama_jax.config import ModelConfig
from llama_jax.kvc import KVCache
from llama_jax.placement import Placement
from llama_jax.sampling import Constrained, Draw, Sampler, TracedSampler


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Carry:
    """What one token hands to the next, besides itself."""

    cache: KVCache
    draw: Draw


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Bounds:
    """Where a call of `decode` ends that decides that itself, and what it knows of the cost of its passes."""

    stop: jax.Array  # int32 [N]: tokens that end a row; -1, which no token is, where there is none
    limit: jax.Array  # int32 scalar: tokens that the call makes at most
    out: jax.Array | None = None  # int32 [n B], n ≥ limit: until="stop" writes its tokens here
    costs: jax.Array | None = None  # float32 [depths]: of a pass of each number of drafts, in plain steps; None: all 1


@dataclass(frozen=True)
class Steps:
    """The functions that `transforms.Programs` describes, before jit, and those that only drafts need.

    run(model, ids int32 [B T], carry, sampler) → (token [B], carry): T tokens in, the next one out. read(model, ids,
        cache) → cache: T tokens into the cache after its `length`, which grows by T, and nothing out.
    verify(model, ids int32 [B T], cache) → (best int32 [B T], cache): T tokens into the cache after its `length`, which
        grows by T; for each of them the greedy next one, the first of the largest logits.
    """

    prefill: Callable
    extend: Callable
    step: Callable
    logits: Callable
    verify: Callable
    run: Callable
    read: Callable


def is_stop(token, stop):
    """True for the tokens [...] that are among the stop tokens [N]; -1 never matches."""
    return jnp.any(token[..., None] == stop, axis=-1)


def arranged(params: model.Model, placement: Placement) -> model.Model:
    """The layers as the placement runs them: one after the other, or stacked for a scan."""
    return model.stack(params) if placement.layers == "scan" else params


def new_cache(params: model.Model, pad, slots: int, config: ModelConfig, placement: Placement) -> KVCache:
    """An empty cache as the placement wants it; in the dtype of the weights where it does not say."""
    dtype = kvc.DTYPES.get(placement.kv, params.embeddings.weight.dtype)
    return kvc.create(config, placement.cache, pad, slots, dtype, placement.layers == "scan")


def new_draw(seeds, vocabulary: int, sampler: Sampler | TracedSampler | Constrained) -> Draw:
    """Nothing drawn yet: a key a row, the tokens seen where the sampler asks for them, and a grammar's start. seeds:
    uint32 [B]."""
    settings = sampling.free(sampler)
    remembers = isinstance(settings, TracedSampler) or settings.repetition_penalty != 1.0
    seen = jnp.zeros((len(seeds), vocabulary), bool) if remembers else None
    keys, index = jax.vmap(jax.random.key)(seeds), jnp.zeros((), jnp.int32)
    return Draw(keys, index, seen, state=sampling.start(sampler, len(seeds)))


def begun(draw: Draw, sampler: Sampler | TracedSampler | Constrained) -> Draw:
    """The draw before an answer's first token, whatever was drawn before."""
    return replace(draw, index=jnp.zeros((), jnp.int32), state=sampling.start(sampler, len(draw.keys)))


def marked(carry: Carry, ids) -> Draw:
    """The draw once the tokens [B T] have been seen."""
    return replace(carry.draw, seen=sampling.mark(carry.draw.seen, ids, carry.cache.length, carry.cache.pad))


def steps(
    config: ModelConfig,
    placement: Placement,
    transform: Callable,
    sample: Callable,
    logits: Callable,
    new_cache: Callable = new_cache,
) -> Steps:
    """The steps of a model. transform: ids [B T], cache → (logits [B V] of the last token, cache). logits: of all.
    new_cache: as the function of that name."""

    def run_tokens(params, ids, carry: Carry, sampler):
        """T tokens in, the next one out."""
        draw = marked(carry, ids)
        values, cache = transform(params, ids, carry.cache)
        token, draw = sample(values, draw, sampler)
        return token, Carry(cache, draw)

    def prefill_step(params, ids, pad, seeds, sampler, slots: int):
        """An empty cache of `slots` positions, then the prompt."""
        cache = new_cache(params, pad, slots, config, placement)
        return run_tokens(params, ids, Carry(cache, new_draw(seeds, config.vocab_size, sampler)), sampler)

    def extend_step(params, ids, carry: Carry, sampler):
        """T more tokens of prompt. What is drawn after them is the answer's first token, whatever was drawn before."""
        return run_tokens(params, ids, replace(carry, draw=begun(carry.draw, sampler)), sampler)

    def step(params, token, carry: Carry, sampler):
        """One token in, the next one out."""
        return run_tokens(params, token[:, None], carry, sampler)

    def verify(params, ids, cache: KVCache):
        """T tokens in, the best next one after each out."""
        values, cache = logits(params, ids, cache)
        return sampling.greedy(values), cache

    def read(params, ids, cache: KVCache):
        """T tokens in."""
        return transform(params, ids, cache)[1]

    return Steps(prefill_step, extend_step, step, logits, verify, run_tokens, read)
