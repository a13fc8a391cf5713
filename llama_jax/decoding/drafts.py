"""Several tokens per pass. A proposer drafts the next few tokens, and one pass over all of them shows how many the
model would have made itself.

This is speculative decoding (Leviathan et al. 2023, https://arxiv.org/abs/2211.17192), entirely on the device. A
`Proposer` drafts from the text so far (`lookup`) or with another model (`smaller`). At any temperature the tokens are
those of the same placement without drafts: to the bit under the fused kernel; XLA may add up several rows in another
order than one, which can change a near-tie. Row i of a pass draws with the key of token i, and a draft is accepted if
it equals the token drawn. This accepts a draft with the probability that the model gives it, and otherwise draws from
the rest, which is rejection sampling.

A rejected draft's keys and values stay in the cache after its `length`, where they are masked, until others overwrite
them. The cache has one length for all rows of a batch: the row that accepts the fewest tokens decides, not counting
rows that have met a stop token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from llama_jax import sampling
from llama_jax.axes import Array, Bool, Float, Int
from llama_jax.decoding import depth
from llama_jax.decoding.depth import Learned
from llama_jax.decoding.steps import Bounds, Carry, Steps, is_stop
from llama_jax.sampling import Draw


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Drafted(Carry):
    """A carry that knows the text. ids: int32 [B S+1], the tokens in the cache's slots and then the newest one.
    learned: the outcome of the drafts so far. kept: what the proposer hands from pass to pass, None for nothing."""

    ids: jax.Array
    learned: Learned
    kept: Any = None


class Found(NamedTuple):
    """What a proposer finds before the number of drafts of the pass is chosen."""

    drafts: Int[Array, "B K"] | None  # as many as a pass may have; None if they cost something
    kind: Int[Array, " B"]  # of what each row has, counted from 0; below that where it has nothing


class Proposer(Protocol):
    """A source of drafts. Plain steps do not inform it; what it missed is in the carry's `ids`.

    priors: how likely a first draft of each kind is right, before any was tried; and last, one after a right one.
    prefill(params, ids [B T], pad, slots) → kept: the first piece of a prompt. extend(params, ids, carry) → kept: one
    more piece, which `carry.ids` already has at its cache's length. look(carry, count) → `Found`, for at most `count`
    drafts after the newest token, which is `carry.ids` at its cache's length. propose(params, found, carry, sampler,
    count) → (drafts int32 [B count], carry), once the number is chosen; sampler: draws the tokens.
    """

    priors: tuple[float, ...]

    def prefill(self, params, ids, pad, slots: int) -> Any: ...

    def extend(self, params, ids, carry: Drafted) -> Any: ...

    def look(self, carry: Drafted, count: int) -> Found: ...

    def propose(self, params, found: Found, carry: Drafted, sampler, count: int) -> tuple[jax.Array, Drafted]: ...


class Ends(NamedTuple):
    """What ends a pass."""

    stop: Int[Array, " N"]  # tokens that end a row
    done: Bool[Array, " B"]  # rows that have ended: their tokens mean nothing any more
    most: Int[Array, ""]  # tokens that the pass may take
    costs: Float[Array, " D"]  # of each depth


@dataclass(frozen=True)
class Drafts:
    """The parts of a pass. depths: how many drafts it may have, rising from 0. sample: logits [B V], draw, sampler →
    (token [B], draw). least: tokens after which a call of `decode` ends, None if stop tokens end it."""

    steps: Steps
    sample: Callable
    proposer: Proposer
    depths: tuple[int, ...]
    least: int | None = None

    @property
    def most(self) -> int:
        """K: drafts of the longest pass."""
        return self.depths[-1]

    def prefill(self, params, ids, pad, seeds, sampler, slots: int):
        """As `Steps.prefill`; the carry is `Drafted`."""
        token, carry = self.steps.prefill(params, ids, pad, seeds, sampler, slots)
        text = jnp.zeros((ids.shape[0], slots + 1), jnp.int32)
        kept = self.proposer.prefill(params, ids, pad, slots)
        learned = depth.nothing(len(ids), self.proposer.priors, self.depths)
        return token, Drafted(carry.cache, carry.draw, jax.lax.dynamic_update_slice(text, ids, (0, 0)), learned, kept)

    def extend(self, params, ids, carry: Drafted, sampler):
        """As `Steps.extend`."""
        carry = written(carry, ids, carry.cache.length)
        kept = self.proposer.extend(params, ids, carry)
        token, carry = self.plain(self.steps.extend, params, ids, carry, sampler)
        return token, replace(carry, kept=kept)

    def step(self, params, token, carry: Drafted, sampler):
        """As `Steps.step`."""
        carry = written(carry, token[:, None], carry.cache.length)
        return self.plain(self.steps.step, params, token, carry, sampler)

    def plain(self, step: Callable, params, ids, carry: Drafted, sampler):
        """A step of `steps`, which do not use drafts."""
        token, plain = step(params, ids, Carry(carry.cache, carry.draw), sampler)
        return token, replace(carry, cache=plain.cache, draw=plain.draw)


def written(carry: Drafted, ids: Int[Array, "B T"], slot) -> Drafted:
    """The carry with these tokens in its text from `slot` on."""
    return replace(carry, ids=jax.lax.dynamic_update_slice(carry.ids, ids, (0, slot)))


def decode(
    params, token, carry: Drafted, sampler, bounds: Bounds, *, request=None, drafts: Drafts, send: Callable | None
):
    """Passes as one `lax.while_loop` until `drafts.least` tokens are made, at most `least` + K; if `least` is None,
    until every row has met a stop token. Never more than `limit`.

    Arguments and results as `transforms.Programs.decode`. bounds.out: int32 [n + K B] for n tokens; None if `least`
    is n, which ignores stop tokens. bounds.costs: float32 [depths], the cost of a pass of each, in plain steps.
    """
    stop, limit, out, least = bounds.stop, bounds.limit, bounds.out, drafts.least
    costs = depth.free(drafts.depths) if bounds.costs is None else bounds.costs
    if least is not None:
        out, stop = jnp.zeros((least + drafts.most, token.shape[0]), jnp.int32), jnp.full_like(stop, -1)
    enough = limit if least is None else jnp.minimum(limit, least)

    def unfinished(state):
        made, done, *_ = state
        return (made < enough) & ~jnp.all(done)

    def body(state):
        made, done, tokens, token, carry = state
        block, new, carry = one_pass(params, token, carry, sampler, drafts, Ends(stop, done, limit - made, costs))
        tokens = jax.lax.dynamic_update_slice(tokens, block, (made, 0))
        token = jax.lax.dynamic_index_in_dim(block, new - 1, keepdims=False)
        done |= jnp.any(is_stop(block, stop) & (jnp.arange(len(block)) < new)[:, None], axis=0)
        made += new
        gone = send(request, block, new) if send else False
        return made, done | gone, tokens, token, carry

    start = (jnp.int32(0), is_stop(token, stop), out, token, carry)
    made, _, tokens, token, carry = jax.lax.while_loop(unfinished, body, start)
    return tokens, made, token, carry


def one_pass(params, token, carry: Drafted, sampler, drafts: Drafts, ends: Ends):
    """(tokens int32 [K+1 B], how many of them count, carry): verified drafts, as many as pay off and fit into the
    cache; or one plain step."""
    carry = written(carry, token[:, None], carry.cache.length)
    found, room = drafts.proposer.look(carry, drafts.most), carry.ids.shape[1] - 2 - carry.cache.length
    index = depth.chosen(carry.learned, found.kind, ends, room, drafts.depths, drafts.proposer.priors)

    def step(state):
        block, _, right, carry = state
        made, carry = drafts.step(params, token, carry, sampler)
        right = right if found.drafts is None else (found.drafts[:, 0] == made).astype(jnp.int32)
        return block.at[0].set(made), jnp.int32(1), right, carry

    def verify(state, count: int):
        proposal, carry = drafts.proposer.propose(params, found, state[3], sampler, count)
        chosen, new, right, carry = verified(params, token, proposal, carry, sampler, drafts, ends)
        return state[0].at[: count + 1].set(chosen), new, right, carry

    rows = len(token)
    state = jnp.zeros((drafts.most + 1, rows), jnp.int32), jnp.int32(0), jnp.zeros(rows, jnp.int32), carry
    for i, count in enumerate(drafts.depths):
        state = once(index == i, partial(verify, count=count) if count else step, state)
    block, new, right, carry = state
    tried = jnp.maximum(jnp.array(drafts.depths)[index], 0 if found.drafts is None else 1)
    return block, new, replace(carry, learned=depth.learn(carry.learned, found.kind, right, tried, index))


def once(wanted, function: Callable, state):
    """function(state) if wanted, otherwise the state. It is a loop of at most one turn, because XLA copies whatever a
    branch of `lax.cond` overwrites: here the whole cache."""

    def body(turn):
        return jnp.bool_(False), function(turn[1])

    return jax.lax.while_loop(lambda turn: turn[0], body, (wanted, state))[1]


def verified(params, token, proposal, carry: Drafted, sampler, drafts: Drafts, ends: Ends):
    """(tokens int32 [T B], how many count, right drafts of each row int32 [B], carry): drafts before the first wrong
    one and the token after them, at most `most`, and none after all rows have ended."""
    stop, done, most, _ = ends
    length, rows = carry.cache.length, jnp.concatenate([token[:, None], proposal], axis=1)
    chosen, states, cache = choices(params, rows, carry, sampler, drafts)
    right = jnp.cumprod(proposal == chosen[:, :-1], axis=1).sum(axis=1)
    ended = jnp.cumsum(is_stop(chosen, stop) | done[:, None], axis=1) > 0  # [B K+1]
    new = 1 + jnp.min(jnp.where(done, proposal.shape[1], right))
    new = jnp.minimum(jnp.minimum(new, most), 1 + jnp.sum(~jnp.all(ended, axis=0)))
    taken = jnp.where(jnp.arange(rows.shape[1]) < new, rows, token[:, None])  # in the place of others one that counts
    seen = sampling.mark(carry.draw.seen, taken, length, carry.cache.pad)
    state = None if states is None else jax.lax.dynamic_index_in_dim(states, new - 1, keepdims=False)
    draw = Draw(carry.draw.keys, carry.draw.index + new, seen, state=state)
    carry = replace(carry, cache=replace(cache, length=length + new), draw=draw)
    return chosen.T, new.astype(jnp.int32), right.astype(jnp.int32), written(carry, chosen, length + 1)


def choices(params, rows: Int[Array, "B T"], carry: Drafted, sampler, drafts: Drafts):
    """(tokens int32 [B T], states, cache): after each of T tokens the one that the sampler would choose there, and the
    state [T B] of its grammar after that, None without one."""
    if sampling.is_greedy(sampler):
        tokens, cache = drafts.steps.verify(params, rows, carry.cache)
        return tokens, None, cache
    values, cache = drafts.steps.logits(params, rows, carry.cache)

    def choose(state, position):
        draw, slot = state
        ids, logits = position
        draw = replace(draw, seen=sampling.mark(draw.seen, ids[:, None], slot, carry.cache.pad))
        token, draw = drafts.sample(logits, draw, sampler)
        return (draw, slot + 1), (token, draw.state)

    _, (tokens, states) = jax.lax.scan(choose, (carry.draw, carry.cache.length), (rows.T, values.swapaxes(0, 1)))
    return tokens.T, states, cache
