"""The steps of a model whose tokens the fused kernel makes; the same functions as `llama_jax/decoding/steps.py`.

A prompt is rows of the same kernel, a few at a time, so a token leaves the same keys and values whether it was part of
a prompt or generated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax.numpy as jnp

from llama_jax import sampling
from llama_jax.config import ModelConfig
from llama_jax.decoding import steps as plain
from llama_jax.decoding.steps import Steps
from llama_jax.kernels import fused, packed
from llama_jax.kvc import KVCache
from llama_jax.model import Model
from llama_jax.placement import Placement

ROWS = 64  # of a prompt a call at most: weights are then read seldom enough, and what all rows need stays in caches


def arranged(params: Model, placement: Placement) -> Model:
    """All layers' weights in three arrays."""
    return replace(params, layers=packed.pack(params.layers))


def new_cache(params: Model, pad, slots: int, config: ModelConfig, placement: Placement) -> KVCache:
    """An empty cache in the kernel's layout."""
    return fused.create(config, pad, slots)


def steps(config: ModelConfig, placement: Placement, transform: Callable, sample: Callable, logits: Callable) -> Steps:
    """As `llama_jax.decoding.steps.steps`. Raises UserError for a model that the kernel does not compute."""
    fused.check(config)
    run = partial(fused.transform, config=config)

    def pieces(params, ids, cache: KVCache, kept: str):
        """Results (logits, best) of each piece of a prompt. kept: whose logits are wanted, as in `fused.transform`."""
        size, results = max(ROWS // ids.shape[0], 1), []
        for start in range(0, ids.shape[1], size):
            last = start + size >= ids.shape[1]
            wanted = "none" if kept == "last" and not last else kept
            values, best, cache = run(params, ids[:, start : start + size], cache, logits=wanted)
            results.append((values, best))
        return results, cache

    def tokens(params, ids, cache: KVCache):
        results, cache = pieces(params, ids, cache, "last")
        return results[-1], cache

    def chosen(result, draw, sampler):
        values, best = result
        token, draw = sample(values, draw, sampler)
        return best if sampling.is_greedy(sampler) else token, draw

    def every(params, ids, cache: KVCache):
        results, cache = pieces(params, ids, cache, "all")
        logits = [values.reshape(len(ids), -1, config.vocab_size) for values, _ in results]
        return jnp.concatenate(logits, axis=1), cache

    def verify(params, ids, cache: KVCache):
        results, cache = pieces(params, ids, cache, "all")
        return jnp.concatenate([best.reshape(len(ids), -1) for _, best in results], axis=1), cache

    def read(params, ids, cache: KVCache):
        return pieces(params, ids, cache, "none")[1]

    return replace(plain.steps(config, placement, tokens, chosen, every, new_cache), verify=verify, read=read)
