"""Requests that came at different times, in one call of the fused kernel: sequences of one cache. Each has a position,
a key, a count of drawn tokens and sampling settings of its own, and gets the tokens that it gets alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from llama_jax import sampling
from llama_jax.axes import Array, Bool, Int
from llama_jax.config import ModelConfig
from llama_jax.kernels import fused
from llama_jax.model import Model
from llama_jax.sampling import Constrained, Draw, Mask, Sampler, TracedSampler


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Slots:
    """What C sequences keep between calls."""

    entries: tuple[jax.Array, jax.Array]  # keys and values, as `fused.rows`
    token: jax.Array  # int32 [C], the newest, not yet cached
    position: jax.Array  # int32 [C], where that goes; below 0 while padding comes first
    keys: jax.Array  # PRNG keys [C]
    drawn: jax.Array  # int32 [C], tokens drawn so far
    seen: jax.Array  # bool [C V]
    samplers: TracedSampler  # each setting [C]


def create(config: ModelConfig, count: int, room: int) -> Slots:
    """Empty slots for so many sequences of `room` positions."""
    entries = fused.create(config, jnp.zeros(count, jnp.int32), room).entries
    # arrays of their own, since each is given away to the next call
    token, position, drawn = (jnp.zeros(count, jnp.int32) for _ in range(3))
    keys, seen = jax.random.split(jax.random.key(0), count), jnp.zeros((count, config.vocab_size), bool)
    settings = replace(Sampler().traced(), scored=jnp.zeros((), bool))
    samplers = jax.tree.map(lambda setting: jnp.full(count, setting), settings)
    return Slots(entries, token, position, keys, drawn, seen, samplers)


def enter(slots: Slots, number, position, seed, seen: Bool[Array, " V"], sampler: TracedSampler) -> Slots:
    """Give a slot to a request whose first tokens, `position` of them, are cached there; below 0: so much padding
    comes first. seen: those tokens."""
    return replace(
        slots,
        position=slots.position.at[number].set(position),
        keys=slots.keys.at[number].set(jax.random.key(seed)),
        seen=slots.seen.at[number].set(seen),
        samplers=jax.tree.map(lambda all, one: all.at[number].set(one), slots.samplers, sampler),
    )


def read(params: Model, slots: Slots, ids: Int[Array, "1 T"], number, allowed=None, *, run: Callable, last: bool):
    """T more tokens of a slot's prompt → (the token [1] that would follow, its `Scores`, slots). What is drawn after
    them is the answer's first, whatever was drawn before. run: `fused.rows` of a model. last: whether the prompt ends
    here; else nothing is drawn, and in its place stand the last of the tokens and None. allowed: bool [1 V], the tokens
    that may follow, where not all may."""
    numbers, first = number[None], slots.position[number]
    logits, _, entries = run(params, ids, first[None], numbers, slots.entries, logits="last" if last else "none")
    seen = slots.seen.at[number].set(sampling.mark(slots.seen[numbers], ids, first, jnp.zeros(1, jnp.int32))[0])
    slots = replace(slots, entries=entries, seen=seen, drawn=slots.drawn.at[number].set(0))
    if last:
        return after(slots, numbers, (logits, allowed), ids.shape[1], jnp.ones(1, bool))
    return ids[:, -1], None, replace(slots, position=slots.position.at[number].add(ids.shape[1]))


def score(
    params: Model,
    slots: Slots,
    ids: Int[Array, "1 T"],
    following: Int[Array, "1 T"],
    number,
    *,
    run: Callable,
    most: int,
):
    """T more tokens of a slot's prompt → (`Scores` [1 T] of the tokens that follow each, and of the `most` most likely
    in their place; slots). Nothing is drawn or marked as seen: `enter` the slot before it answers."""
    numbers, first = number[None], slots.position[number]
    logits, _, entries = run(params, ids, first[None], numbers, slots.entries, logits="all")
    found = sampling.scored(logits, following[0], most)
    slots = replace(slots, entries=entries, position=slots.position.at[number].add(ids.shape[1]))
    return jax.tree.map(lambda part: part[None], found), slots


def step(
    params: Model,
    slots: Slots,
    numbers: Int[Array, " R"],
    live: Bool[Array, " R"],
    allowed: Bool[Array, "R V"] | None = None,
    *,
    run: Callable,
    tokens: int,
):
    """`tokens` more of some sequences → (int32 [tokens R], `Scores` of each, slots). numbers: rising; a row that is not
    live is there for the shape alone, and changes nothing. allowed: the tokens that may come next, where not all may;
    then one token of each, whatever `tokens` says."""

    def one(slots: Slots, _):
        ids = slots.token[numbers]
        first = jnp.where(live, slots.position[numbers], -1)
        logits, _, entries = run(params, ids[:, None], first, numbers, slots.entries)
        slots = replace(slots, entries=entries, seen=slots.seen.at[numbers, ids].max(live))
        *made, slots = after(slots, numbers, (logits, allowed), 1, live)
        return slots, made

    slots, made = jax.lax.scan(one, slots, None, length=tokens if allowed is None else 1)
    return *made, slots


def after(slots: Slots, numbers, given: tuple, many: int, live: Bool[Array, " R"]):
    """The next token [R] of each sequence, its scores, and the slots with `many` more cached. given: their logits [R V]
    and the tokens that may come next, None for all."""
    settings = slots.keys, slots.drawn, slots.seen, slots.samplers
    token, scores = jax.lax.map(choose, (*given, *jax.tree.map(lambda all: all[numbers], settings)))
    return (
        token,
        scores,
        replace(
            slots,
            token=slots.token.at[numbers].set(jnp.where(live, token, slots.token[numbers])),
            position=slots.position.at[numbers].add(jnp.where(live, many, 0)),
            drawn=slots.drawn.at[numbers].add(live),
        ),
    )


def choose(row) -> tuple[Int[Array, ""], sampling.Scores]:
    """The token that one sequence's sampler chooses. Sequences take turns, so that a greedy one draws nothing."""
    logits, allowed, key, drawn, seen, sampler = row
    if allowed is not None:
        sampler = Constrained(sampler, Mask(allowed[None]))
    token, draw = sampling.next_token(logits[None], Draw(key[None], drawn, seen[None]), sampler)
    return jax.tree.map(lambda one: one[0], (token, draw.scores))
