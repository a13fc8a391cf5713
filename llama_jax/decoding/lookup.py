"""Drafts from the text itself: the tokens that followed an earlier occurrence of the last tokens.

Prompt lookup (Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding) needs no second model. The tokens so
far are part of the carry, and the search is a comparison of arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from llama_jax.axes import Array, Int
from llama_jax.decoding.drafts import Drafted, Found

LONGEST = 3  # last tokens that are looked for; of places that have as many of them, the newest counts
LEAST = 2  # with fewer of them nothing is proposed


@dataclass(frozen=True)
class Lookup:
    """A `drafts.Proposer` that keeps nothing. Its kinds are 2 and 3 tokens that agree."""

    priors = (0.2, 0.4, 0.7)

    def prefill(self, params, ids, pad, slots: int) -> None:
        return None

    def extend(self, params, ids, carry: Drafted) -> None:
        return None

    def look(self, carry: Drafted, count: int) -> Found:
        return Found(*proposed(carry.ids, carry.cache.length, carry.cache.pad, count))

    def propose(self, params, found: Found, carry: Drafted, sampler, count: int) -> tuple[jax.Array, Drafted]:
        return found.drafts[:, :count], carry


def proposed(ids: Int[Array, "B S"], length, pad: Int[Array, " B"], count: int) -> tuple[jax.Array, jax.Array]:
    """(drafts int32 [B K], their kind int32 [B]: tokens that agree less `LEAST`, -1 if nothing is found) after the
    token at `length`, the newest.

    They follow the earlier place that agrees in most of the last `LONGEST` tokens, at least `LEAST`. If the text ends
    too soon after that place, it is assumed to repeat itself:

    ids     4 7 5 6 7 5 _       the last two are also at 1 and 2
    drafts              6 7 5 6 7
    """
    at = jnp.arange(ids.shape[1], dtype=jnp.int32)
    agree, agreed = jnp.ones(ids.shape, bool), jnp.zeros(ids.shape, jnp.int32)
    for back in range(LONGEST):
        last = jax.lax.dynamic_slice_in_dim(ids, length - back, 1, axis=1)
        agree &= jnp.roll(ids == last, back, axis=1) & (at - back >= pad[:, None])
        agreed += agree
    rank = jnp.where((at < length) & (agreed >= LEAST), agreed * ids.shape[1] + at, -1)
    place = jnp.argmax(rank, axis=1).astype(jnp.int32)[:, None]
    following = place + 1 + jnp.arange(count, dtype=jnp.int32) % (length - place)
    return jnp.take_along_axis(ids, following, axis=1), jnp.maximum(jnp.max(rank, axis=1) // ids.shape[1] - LEAST, -1)
