"""The steps of a model whose single tokens the fused kernel makes; the same functions as `llama_jax/steps.py`.

Prompts run as elsewhere, on a cache of their own length; what they leave is then kept as the kernel wants it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax

from llama_jax import steps as plain
from llama_jax.config import ModelConfig
from llama_jax.kernels import fused, packed
from llama_jax.model import Model, rope, sampling
from llama_jax.model.kvc import Cache
from llama_jax.placement import Placement
from llama_jax.steps import Carry, Steps


def arranged(params: Model, placement: Placement) -> Model:
    """All layers' weights in three arrays."""
    return replace(params, layers=packed.pack(params.layers))


def new_cache(params: Model, pad, slots: int, config: ModelConfig, placement: Placement) -> Cache:
    """An empty cache in the kernel's layout."""
    return fused.pack(plain.new_cache(params, pad, 0, config, placement), slots)


def steps(config: ModelConfig, placement: Placement, transform: Callable, sample: Callable, logits: Callable) -> Steps:
    """As `llama_jax.steps.steps`. Raises UserError for a model that the kernel does not compute."""
    fused.check(config)
    inverse = rope.frequencies(config)
    prompt = plain.steps(config, placement, transform, sample, logits)

    def prefill_step(params, ids, pad, seeds, sampler, slots: int):
        token, carry = prompt.prefill(params, ids, pad, seeds, sampler, ids.shape[1])
        return token, replace(carry, cache=fused.pack(carry.cache, slots))

    def extend_step(params, ids, carry: Carry, sampler):
        slots = fused.slots(carry.cache)
        token, carry = prompt.extend(params, ids, replace(carry, cache=fused.unpack(carry.cache)), sampler)
        return token, replace(carry, cache=fused.pack(carry.cache, slots))

    def step(params, token, carry: Carry, sampler):
        draw = plain.marked(carry, token[:, None])
        values, best, cache = fused.transform(params, token, carry.cache, config=config, inverse=inverse)
        chosen, draw = sample(values, draw, sampler)
        return best if sampling.is_greedy(sampler) else chosen, Carry(cache, draw)

    def every(params, ids, cache: Cache):
        def body(cache, token):
            values, _, cache = fused.transform(params, token, cache, config=config, inverse=inverse)
            return cache, values

        cache, values = jax.lax.scan(body, cache, ids.T)
        return values.swapaxes(0, 1), cache

    def verify(params, ids, cache: Cache):
        def body(cache, token):
            _, best, cache = fused.transform(params, token, cache, config=config, inverse=inverse)
            return cache, best

        cache, best = jax.lax.scan(body, cache, ids.T)
        return best.swapaxes(0, 1), cache

    return Steps(prefill_step, extend_step, step, every, verify)
