"""Host loops: which thread starts the calls and which fetches their tokens, and how far the device runs ahead.

Each loop is a generator (engine, request, token [B], carry, sampler) → blocks of tokens int32 [n B] on the host. They
know nothing of grammars, which compiled programs follow by their table; `masked` is for those that have none.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax.decoding.request import Request, bucket
from llama_jax.decoding.steps import Bounds
from llama_jax.engine import Engine
from llama_jax.placement import Placement
from llama_jax.plumbing import threads
from llama_jax.sampling import Constrained, Mask, Sampler
from llama_jax.transforms import settings

if TYPE_CHECKING:
    from llama_jax.grammars import Walker


def in_one_thread(engine: Engine, batch: Request, token, carry, sampler) -> Iterator[np.ndarray]:
    """host="sync" and "async": the reader's thread starts one or `in_flight` calls before it looks at a token."""
    if engine.placement.until == "stop":
        yield until_stop(engine, batch, token, carry, sampler)
        return
    if engine.placement.drafts:
        for block, _ in drafted_calls(engine, batch, token, carry, sampler):
            yield block
        return
    ahead = engine.placement.in_flight if engine.placement.host == "async" else 0
    flying: deque = deque()
    for tokens, _ in calls(engine, batch, token, carry, sampler):
        if ahead:
            tokens.copy_to_host_async()
        flying.append(tokens)
        if len(flying) >= max(ahead, 1):
            yield engine.fetch(flying.popleft())
    while flying:
        yield engine.fetch(flying.popleft())


def masked(engine: Engine, batch: Request, token, carry, sampler, walkers: list[Walker]) -> Iterator[np.ndarray]:
    """A token a call, each from those that the walkers of the rows allow after the tokens before it. sampler: as the
    user gave it."""
    ended = np.zeros(len(walkers), bool)
    for _ in range(batch.new_tokens - 1):
        ids = engine.fetch(token)[0]
        ended |= np.isin(ids, batch.stop)
        for walker, id, over in zip(walkers, ids.tolist(), ended, strict=True):
            if not over:
                walker.advance(id)
        allowed = settings(constrained(sampler, walkers), engine.placement)
        token, carry = engine.programs.step(engine.params, token, carry, allowed)
        yield engine.fetch(token)


def constrained(sampler: Sampler, walkers: Sequence[Walker]) -> Constrained:
    """The sampler of the tokens that may come next in each row."""
    return Constrained(sampler, Mask(jnp.asarray(np.stack([walker.mask() for walker in walkers]))))


def in_three_threads(engine: Engine, batch: Request, token, carry, sampler) -> Iterator[np.ndarray]:
    """host="queue": one thread starts calls, one fetches their tokens, and the reader's thread only reads. Bounded
    queues connect them."""
    bound = engine.placement.in_flight
    started = threads.ahead(calls(engine, batch, token, carry, sampler), bound, "decode")
    yield from threads.ahead(fetched(engine, started), bound, "fetch")


def called_back(engine: Engine, batch: Request, token, carry, sampler) -> Iterator[np.ndarray]:
    """host="callback": a thread makes the calls, which on a CPU return only when they are done. They send their tokens
    from inside.

    Nothing limits how far the device runs ahead of the reader: it never waits, and a token is a few bytes.
    """

    def run(channel: threads.Channel) -> None:
        programs = engine.programs
        with programs.receiver.taking(channel.put) as number:
            sending = replace(engine, programs=replace(programs, decode=partial(programs.decode, request=number)))
            if engine.placement.until == "stop":
                until_stop(sending, batch, token, carry, sampler)
                return
            started = drafted_calls if engine.placement.drafts else calls
            for tokens, sent in started(sending, batch, token, carry, sampler):
                block = engine.fetch(tokens)
                if not sent:
                    channel.put(block)
                if channel.closed:
                    return

    yield from threads.threaded(run, None, "decode")


LOOPS = {"sync": in_one_thread, "async": in_one_thread, "queue": in_three_threads, "callback": called_back}


def calls(engine: Engine, batch: Request, token, carry, sampler) -> Iterator[tuple[jax.Array, bool]]:
    """Start the calls one after the other: (their tokens on the device, whether `decode` made them and may send them
    itself)."""
    programs, placement = engine.programs, engine.placement
    for size in sizes(placement, batch.new_tokens - 1):
        whole = placement.jits_decode and size == placement.tokens_per_call
        if whole:
            tokens, _, token, carry = programs.decode(engine.params, token, carry, sampler)
        else:
            token, carry = programs.step(engine.params, token, carry, sampler)
            tokens = token
        yield tokens, whole


def drafted_calls(engine: Engine, batch: Request, token, carry, sampler) -> Iterator[tuple[np.ndarray, bool]]:
    """As `calls`, for calls that decide themselves how many tokens they make: (those on the host, True)."""
    left = batch.new_tokens - 1
    while left:
        bounds = Bounds(stop=batch.stop, limit=np.int32(left))
        bounds, carry = engine.costs.of(engine, batch, token, carry, sampler, bounds)
        tokens, made, token, carry = engine.programs.decode(engine.params, token, carry, sampler, bounds)
        block = engine.fetch(tokens)[: int(made)]
        left -= len(block)
        yield block, True


def fetched(engine: Engine, started: Iterator[tuple[jax.Array, bool]]) -> Iterator[np.ndarray]:
    """Each call's tokens on the host."""
    with contextlib.closing(started):
        for tokens, _ in started:
            yield engine.fetch(tokens)


def sizes(placement: Placement, wanted: int) -> list[int]:
    """Tokens of each call, `wanted` in total: full chunks, then single steps for the rest."""
    size = placement.tokens_per_call
    return [size] * (wanted // size) + [1] * (wanted % size)


def until_stop(engine: Engine, batch: Request, token, carry, sampler) -> np.ndarray:
    """All remaining tokens of the batch from one call."""
    wanted = batch.new_tokens - 1
    out = np.zeros((bucket(wanted + engine.placement.drafts), batch.ids.shape[0]), np.int32)
    bounds = Bounds(stop=batch.stop, limit=np.int32(wanted), out=out)
    if engine.placement.drafts:
        bounds, carry = engine.costs.of(engine, batch, token, carry, sampler, bounds)
    tokens, made, *_ = engine.programs.decode(engine.params, token, carry, sampler, bounds)
    return engine.fetch(tokens)[: int(made)]
