"""Drafts by a smaller model of the same vocabulary, inside the same program as the model that verifies them.

It draws each draft from its own probabilities, with the key that the model will use for that token. Two draws with the
same key agree far more often than two with different keys (Gumbel coupling; Daliri et al. 2024,
https://arxiv.org/abs/2408.07978), and the tokens remain those of the model alone.

It has its own cache, which is valid as far as the text that it has read is still the text. Rejected drafts end it, and
tokens of plain steps are read before it proposes again. Its first step reads the last two tokens. If all its drafts
were accepted, both are new to it; otherwise it knows the first, and reading that again costs little beside the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from llama_jax.decoding.drafts import Drafted, Found
from llama_jax.decoding.steps import Carry, Steps
from llama_jax.kvc import KVCache
from llama_jax.model import Model

BLOCK = 8  # tokens that it reads at a time where it is behind


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Both:
    """The weights of a model and of the one that drafts for it."""

    target: Model
    draft: Model


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Read:
    """What the smaller model has read. ids: int32 [B S+1], the tokens in the slots of its cache."""

    cache: KVCache
    ids: jax.Array


@dataclass(frozen=True)
class Smaller:
    """A `drafts.Proposer` whose parameters are `Both`. steps: those of the smaller model. new_cache: its weights, pad
    [B], slots → an empty cache of it."""

    steps: Steps
    new_cache: Callable
    priors = (0.7, 0.8)

    def prefill(self, params: Both, ids, pad, slots: int) -> Read:
        text = jnp.zeros((ids.shape[0], slots + 1), jnp.int32)
        cache = self.steps.read(params.draft, ids, self.new_cache(params.draft, pad, slots))
        return Read(cache, jax.lax.dynamic_update_slice(text, ids, (0, 0)))

    def extend(self, params: Both, ids, carry: Drafted) -> Read:
        return Read(self.steps.read(params.draft, ids, carry.kept.cache), carry.ids)

    def look(self, carry: Drafted, count: int) -> Found:
        return Found(None, jnp.zeros(carry.ids.shape[0], jnp.int32))

    def propose(self, params: Both, found: Found, carry: Drafted, sampler, count: int) -> tuple[jax.Array, Drafted]:
        rows, newest = carry.ids.shape[0], carry.cache.length
        last = jax.lax.dynamic_slice(carry.ids, (0, newest - 1), (rows, 2))
        cache = self.caught_up(params.draft, carry)
        token, own = self.steps.run(params.draft, last, Carry(cache, carry.draw), sampler)

        def another(_, state):
            token, own, ids = state
            ids = jax.lax.dynamic_update_slice(ids, token[:, None], (0, own.cache.length))
            return *self.steps.step(params.draft, token, own, sampler), ids

        token, own, ids = jax.lax.fori_loop(1, count, another, (token, own, carry.ids))
        ids = jax.lax.dynamic_update_slice(ids, token[:, None], (0, own.cache.length))
        drafts = jax.lax.dynamic_slice(ids, (0, newest + 1), (rows, count))
        return drafts, replace(carry, kept=Read(own.cache, ids))

    def caught_up(self, params: Model, carry: Drafted) -> KVCache:
        """Its cache with all of the text but the last two tokens: rolled back to the part that is still the text, with
        the rest read, some of it again if that fills a block."""
        kept, end = carry.kept, carry.cache.length - 1
        rows, slots = carry.ids.shape[0], carry.ids.shape[1] - 1
        size = min(BLOCK, slots)
        right = jnp.all(kept.ids == carry.ids, axis=0) & (jnp.arange(slots + 1) < kept.cache.length)
        known = jnp.cumprod(right).sum(dtype=jnp.int32)

        def read(cache: KVCache) -> KVCache:
            start = jnp.maximum(jnp.minimum(cache.length, end - size), 0)
            ids = jax.lax.dynamic_slice(carry.ids, (0, start), (rows, size))
            cache = self.steps.read(params, ids, replace(cache, length=start))
            return replace(cache, length=jnp.minimum(start + size, end))

        cache = replace(kept.cache, length=jnp.minimum(known, end))
        return jax.lax.while_loop(lambda cache: cache.length < end, read, cache)


def of_target(steps: Steps) -> Steps:
    """Steps of a model, given the weights of `Both`."""

    def given(function: Callable) -> Callable:
        return lambda params, *args, **named: function(params.target, *args, **named)

    return Steps(*(given(getattr(steps, name)) for name in Steps.__dataclass_fields__))
