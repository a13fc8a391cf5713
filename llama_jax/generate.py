"""Generation under any placement: build an engine, then ask it for answers.

An `Engine` is a model bound to a placement (`build`, `bind`). `stream` yields blocks of token ids as they reach the
host; how many come at once, and how far the device runs ahead, is the placement's affair. `answer` collects a stream
into answers. `prefill` and `decode` are the two halves of a stream, `logits` scores a text.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax.decoding.request import PIECE, Request, bucket, request  # noqa: F401 (offered here)
from llama_jax.engine import (  # noqa: F401
    Engine,
    bind,
    build,
    checked_request,
    fetch,
    form,
    load,
    require_kernels,
    weights,
)
from llama_jax.hosts import LOOPS, constrained, masked
from llama_jax.plumbing import threads
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import listed
from llama_jax.sampling import Constrained, Sampler
from llama_jax.transforms import new_cache, settings

if TYPE_CHECKING:
    from llama_jax.grammars import Grammar

GREEDY = Sampler()


def prefill(engine: Engine, batch: Request, sampler: Sampler = GREEDY):
    """Run the prompts: (first new token [B] on the device, carry)."""
    sampler = settings(sampler, engine.placement)
    size = PIECE if batch.ids.shape[1] > PIECE else batch.ids.shape[1]
    pieces = [batch.ids[:, i : i + size] for i in range(0, batch.ids.shape[1], size)]
    token, carry = engine.programs.prefill(engine.params, pieces[0], batch.pad, batch.seeds, sampler, slots=batch.slots)
    for piece in pieces[1:]:
        token, carry = engine.programs.extend(engine.params, piece, carry, sampler)
    return token, carry


def decode(engine: Engine, batch: Request, token, carry, sampler: Sampler = GREEDY) -> Iterator[np.ndarray]:
    """Blocks of the further `new_tokens - 1` tokens [n B], in order, as they reach the host."""
    if batch.new_tokens > 1:
        yield from LOOPS[engine.placement.host](engine, batch, token, carry, settings(sampler, engine.placement))


def stream(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    sampler: Sampler = GREEDY,
    seeds: Sequence[int] | int = 0,
    stop: Collection[int] = (),
    grammar: Grammar | None = None,
    **shape: int | None,
) -> Iterator[np.ndarray]:
    """Blocks of token ids int32 [n B] as they reach the host, in order; the blocks have `new_tokens` rows in all, or
    fewer where every sequence has met a stop token.

    prompts: B lists of token ids. seeds: one a prompt, or a single one s, which gives row i the seed s + i. stop: token
    ids that end a sequence; what a row holds after its stop token means nothing. grammar: what each answer must be
    (`ll.grammar`); its stop tokens are those that it was compiled with. shape: `slots`, cache positions, by default as
    many as are needed, rounded up to few sizes; `length`, padded length of the prompts, by default rounded up likewise.
    Raises UserError for a request that the model or the machine's memory cannot serve, and for a grammar that the
    placement cannot follow, before any work.
    """
    batch = checked_request(engine, prompts, new_tokens, seeds, stop, **shape)
    if grammar is None:
        token, carry = prefill(engine, batch, sampler)
        loop = decode(engine, batch, token, carry, sampler)
    else:
        token, loop = follow(engine, batch, sampler, grammar)
    with contextlib.closing(loop) as further:
        # closing ends the host's threads, also where the reader leaves early
        blocks = itertools.chain([engine.fetch(token)], further)
        for block in until_all_have_met(blocks, batch.stop) if batch.stop[0] >= 0 else blocks:
            yield block
            threads.COMPUTING.check()


def follow(engine: Engine, batch: Request, sampler: Sampler, grammar: Grammar):
    """`prefill` and `decode` of answers that follow a grammar: (first new token [B] on the device, blocks of others).
    Its table goes into the compiled programs; where it has none, the host makes a mask for each token."""
    settings(sampler, engine.placement)
    check_grammar(engine, grammar)
    if grammar.table is None:
        walkers = [grammar.host() for _ in batch.seeds]
        token, carry = prefill(engine, batch, constrained(sampler, walkers))
        return token, masked(engine, batch, token, carry, sampler, walkers)
    sampler = Constrained(sampler, jax.tree.map(jnp.asarray, grammar.table))
    token, carry = prefill(engine, batch, sampler)
    return token, decode(engine, batch, token, carry, sampler)


def check_grammar(engine: Engine, grammar: Grammar) -> None:
    """Raises UserError for a grammar of another vocabulary, and for one without a table where the host does not see
    each token before the next is made."""
    placement, size = engine.placement, engine.config.vocab_size
    if grammar.table is not None and len(grammar.table.classes) != size:
        raise UserError(
            f"The grammar was compiled for {len(grammar.table.classes)} tokens, the model has {size}; compile it for"
            " this model."
        )
    if grammar.table is None and (placement.jits_decode or placement.drafts or placement.host != "sync"):
        raise UserError(
            "This grammar has no table, so the host must see each token before the next; placement"
            f" {placement.name!r} goes on without it. Use step, or a schema."
        )


def until_all_have_met(blocks: Iterator[np.ndarray], stop: np.ndarray) -> Iterator[np.ndarray]:
    """Blocks [n B] up to and including the row in which the last sequence meets one of the tokens `stop` [N]."""
    done: np.ndarray | bool = False
    for block in blocks:
        met = (block[..., None] == stop).any(axis=-1)  # numpy.isin takes several times as long for so few, once a token
        ended = done | np.logical_or.accumulate(met, axis=0)  # [n B]
        over = ended.all(axis=1)
        if over.any():
            yield block[: int(np.argmax(over)) + 1]
            return
        done = ended[-1]
        yield block


@dataclass(frozen=True)
class Answer:
    """One row's answer. finish_reason: "stop" where token_ids ends with a stop token, else "length". activations:
    {site: [n ...]}, a row a token, where a caller has taken them."""

    token_ids: tuple[int, ...]
    finish_reason: str
    activations: dict[str, np.ndarray] | None = field(default=None, repr=False, compare=False)


def cut(tokens: np.ndarray, stop: Collection[int]) -> Answer:
    """A row of raw tokens up to and including its first stop token."""
    hits = np.flatnonzero(np.isin(tokens, list(stop)))
    kept = tokens[: hits[0] + 1] if len(hits) else tokens
    return Answer(tuple(int(t) for t in kept), "stop" if len(hits) else "length")


def answer(
    engine: Engine, prompts: Sequence[Sequence[int]], new_tokens: int, stop: Collection[int] = (), **options
) -> list[Answer]:
    """Answers to a batch of prompts (lists of token ids). Options and errors as for `stream`."""
    blocks = np.concatenate(list(stream(engine, prompts, new_tokens, stop=stop, **options)))
    return [cut(row, stop) for row in blocks.T]


def logits(engine: Engine, ids: Sequence[int]) -> jax.Array:
    """Logits of every position of one sequence, float32 [T V], for evaluation. Raises UserError as `stream`."""
    size = len(listed(ids, "A prompt", "token ids"))
    batch = checked_request(engine, [ids], 1, length=size, slots=size, every=True)
    cache = new_cache(engine.model, jnp.asarray(batch.pad), batch.slots, engine.config, engine.placement)
    return engine.programs.logits(engine.params, jnp.asarray(batch.ids), cache)[0][0]
