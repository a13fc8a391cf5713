"""Generation under any placement: one engine, one protocol.

An `Engine` is a model bound to a placement. `stream` yields blocks of token ids as they reach the host; how many come
at once, and how far the device runs ahead, is the placement's affair. `answer` collects a stream into answers.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax import kernels, kvc
from llama_jax.checkpoint import Checkpoint
from llama_jax.config import ModelConfig
from llama_jax.decoding.request import PIECE, Request, bucket, request
from llama_jax.model import Model
from llama_jax.placement import Placement, parse
from llama_jax.plumbing import threads
from llama_jax.plumbing.values import listed
from llama_jax.quantise import FORMS
from llama_jax.sampling import Sampler
from llama_jax.transforms import Programs, assemble, new_cache, prepare, settings

GREEDY = Sampler()


def fetch(tokens: jax.Array) -> np.ndarray:
    """Tokens [B] or [n B] as a host array [n B] of its own; waits until they are computed."""
    return np.array(tokens).reshape(-1, tokens.shape[-1])


@dataclass(frozen=True)
class Engine:
    """A model under a placement. fetch: how tokens come to the host, so that a measurement can put a clock around
    it."""

    config: ModelConfig
    params: Model
    placement: Placement
    programs: Programs
    fetch: Callable[[jax.Array], np.ndarray] = fetch


def build(checkpoint: Checkpoint, placement: Placement | str = "loop") -> Engine:
    """Bind a checkpoint to a placement, given as a value or by name. Nothing is compiled yet."""
    placement = parse(placement)
    require_kernels(placement)
    return bind(checkpoint.config, weights(checkpoint, placement), placement)


def require_kernels(placement: Placement) -> None:
    """Raises UserError where a placement asks for compiled kernels and this machine has none."""
    if placement.kernels != "none":
        kernels.check()


def form(checkpoint: Checkpoint, placement: Placement) -> str | None:
    """The one of `quantise.FORMS` that the weights have under this placement; None where they are not quantised."""
    if placement.weights != "loaded":
        return placement.weights if placement.weights in FORMS else None
    if placement.kernels != "none":
        return checkpoint.blocks
    return checkpoint.dtype if checkpoint.dtype in FORMS else None


def weights(checkpoint: Checkpoint, placement: Placement) -> Model:
    """The checkpoint's weights in that form; as they were loaded where there is none."""
    wanted = form(checkpoint, placement)
    return checkpoint.weights(wanted) if wanted else checkpoint.params


def bind(config: ModelConfig, params: Model, placement: Placement) -> Engine:
    """As `build`, from a bare configuration and parameters, which are quantised here where the placement asks for it.

    Raises UserError where the weights cannot be had in that form.
    """
    threads.Fork.check()
    threads.Fork.used = True
    require_kernels(placement)
    return Engine(config, prepare(params, placement), placement, assemble(config, placement))


def asked(engine: Engine, *batch, every: bool = False, **options) -> Request:
    """`request.request` for this engine, its memory counted. every: logits of all positions are wanted.

    Raises UserError as that does, and in a fork.
    """
    threads.Fork.check()
    return request(engine.config, *batch, **options, need=partial(need, engine, every))


def need(engine: Engine, every: bool, rows: int, length: int, slots: int) -> float:
    """Bytes that a request takes at least: the cache, twice where a call does not own the one that it is given, and the
    attention scores and logits of its largest call, float32."""
    config, placement = engine.config, engine.placement
    none = placement.cache == "none"  # every call runs all that there is
    width = length if every else slots if none else max(min(length, PIECE), 1 + placement.drafts)
    dtype = kvc.DTYPES.get(
        kvc.FUSED if placement.kernels == "fused" else placement.kv, engine.params.embedding.weight.dtype
    )
    position = 0 if none else config.kv_bytes_per_position(kvc.itemsize(dtype, config.head_dim))
    rows_of_logits = length if every else 1 + placement.drafts
    scores, logits = config.num_attention_heads * width * slots, config.vocab_size * rows_of_logits
    return rows * ((1 if placement.donate else 2) * slots * position + 4 * (scores + logits))


def prefill(engine: Engine, batch: Request, sampler: Sampler = GREEDY):
    """Run the prompts: (first new token [B] on the device, carry)."""
    sampler = settings(sampler, engine.placement)
    size = PIECE if batch.ids.shape[1] > PIECE else batch.ids.shape[1]
    pieces = [batch.ids[:, i : i + size] for i in range(0, batch.ids.shape[1], size)]
    token, carry = engine.programs.prefill(engine.params, pieces[0], batch.pad, batch.seeds, sampler, batch.slots)
    for piece in pieces[1:]:
        token, carry = engine.programs.extend(engine.params, piece, carry, sampler)
    return token, carry


def decode(engine: Engine, batch: Request, token, carry, sampler: Sampler = GREEDY) -> Iterator[np.ndarray]:
    """Blocks of the further `new_tokens - 1` tokens [n B], in order, as they reach the host."""
    if batch.new_tokens > 1:
        yield from HOSTS[engine.placement.host](engine, batch, token, carry, settings(sampler, engine.placement))


def in_one_thread(engine: Engine, batch: Request, token, carry, sampler) -> Iterator[np.ndarray]:
    """host="sync" and "async": the reader's thread starts the calls, one or `in_flight` of them before it looks at a
    token."""
    if engine.placement.until == "stop":
        yield decode_until_stop(engine, batch, token, carry, sampler)
        return
    if engine.placement.drafts:
        for block, _ in drafted(engine, batch, token, carry, sampler):
            yield block
        return
    ahead = engine.placement.in_flight if engine.placement.host == "async" else 0
    flying: deque = deque()
    for tokens, _ in dispatched(engine, batch, token, carry, sampler):
        if ahead:
            tokens.copy_to_host_async()
        flying.append(tokens)
        if len(flying) >= max(ahead, 1):
            yield engine.fetch(flying.popleft())
    while flying:
        yield engine.fetch(flying.popleft())


def in_three_threads(engine: Engine, batch: Request, token, carry, sampler) -> Iterator[np.ndarray]:
    """host="queue": one thread starts calls, one fetches their tokens, the reader's does nothing but read; bounded
    queues between."""
    bound = engine.placement.in_flight
    started = threads.ahead(dispatched(engine, batch, token, carry, sampler), bound, "decode")
    yield from threads.ahead(fetched(engine, started), bound, "fetch")


def called_back(engine: Engine, batch: Request, token, carry, sampler) -> Iterator[np.ndarray]:
    """host="callback": a thread sits in the calls, which on a CPU return only when they are done; tokens come from
    within them.

    Nothing bounds how far the device is ahead of the reader: it never waits for one, and a token is a few bytes.
    """

    def run(channel: threads.Channel) -> None:
        with engine.programs.receiver.taking(channel.put) as number:
            if engine.placement.until == "stop":
                decode_until_stop(engine, batch, token, carry, sampler, number)
                return
            started = drafted if engine.placement.drafts else dispatched
            for tokens, sent in started(engine, batch, token, carry, sampler, number):
                block = engine.fetch(tokens)
                if not sent:
                    channel.put(block)
                if channel.closed:
                    return

    yield from threads.threaded(run, None, "decode")


HOSTS = {"sync": in_one_thread, "async": in_one_thread, "queue": in_three_threads, "callback": called_back}


def dispatched(engine: Engine, batch: Request, token, carry, sampler, number=None) -> Iterator[tuple[jax.Array, bool]]:
    """Start the calls one after the other: (their tokens on the device, whether it was `decode`, which may send them
    itself)."""
    for size in calls(engine.placement, batch.new_tokens - 1):
        whole = engine.placement.jits_decode and size == engine.placement.tokens_per_call
        if whole:
            tokens, _, token, carry = engine.programs.decode(
                engine.params, token, carry, sampler, batch.stop, 0, None, number
            )
        else:
            token, carry = engine.programs.step(engine.params, token, carry, sampler)
            tokens = token
        yield tokens, whole


def drafted(engine: Engine, batch: Request, token, carry, sampler, number=None) -> Iterator[tuple[np.ndarray, bool]]:
    """As `dispatched`, for calls that say themselves how many tokens they have made: (those on the host, True)."""
    left = batch.new_tokens - 1
    while left:
        tokens, made, token, carry = engine.programs.decode(
            engine.params, token, carry, sampler, batch.stop, np.int32(left), None, number
        )
        block = engine.fetch(tokens)[: int(made)]
        left -= len(block)
        yield block, True


def fetched(engine: Engine, started: Iterator[tuple[jax.Array, bool]]) -> Iterator[np.ndarray]:
    """Each call's tokens on the host."""
    with contextlib.closing(started):
        for tokens, _ in started:
            yield engine.fetch(tokens)


def calls(placement: Placement, wanted: int) -> list[int]:
    """Tokens made by each call, so that no more than `wanted` are: full chunks, then single steps for the rest."""
    size = placement.tokens_per_call
    return [size] * (wanted // size) + [1] * (wanted % size)


def decode_until_stop(engine: Engine, batch: Request, token, carry, sampler, number=None) -> np.ndarray:
    """All remaining tokens of the batch from one call."""
    wanted = batch.new_tokens - 1
    out = np.zeros((bucket(wanted + engine.placement.drafts), batch.ids.shape[0]), np.int32)
    tokens, made, *_ = engine.programs.decode(
        engine.params, token, carry, sampler, batch.stop, np.int32(wanted), out, number
    )
    return engine.fetch(tokens)[: int(made)]


def stream(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    sampler: Sampler = GREEDY,
    seeds: Sequence[int] | int = 0,
    stop: Collection[int] = (),
    slots: int | None = None,
    length: int | None = None,
) -> Iterator[np.ndarray]:
    """Blocks of token ids int32 [n B] as they arrive, the first token first; ends when every row has met a stop token.

    At most `new_tokens` rows in all. A row that is done goes on being filled; its tokens after the stop mean nothing.
    """
    batch = asked(engine, prompts, new_tokens, seeds, stop, slots, length)
    token, carry = prefill(engine, batch, sampler)
    # ends its threads, whoever leaves first
    with contextlib.closing(decode(engine, batch, token, carry, sampler)) as further:
        blocks = itertools.chain([engine.fetch(token)], further)
        for block in until_all_have_met(blocks, batch.stop) if batch.stop[0] >= 0 else blocks:
            yield block
            threads.Fork.check()


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
    """One row's answer. token_ids ends with the stop token when finish_reason is "stop", else it is "length".
    activations: {site: [n ...]}, a row a token, where they were asked for."""

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
    """Answers to a batch of prompts (lists of token ids). Options as for `stream`."""
    blocks = np.concatenate(list(stream(engine, prompts, new_tokens, stop=stop, **options)))
    return [cut(row, stop) for row in blocks.T]


def logits(engine: Engine, ids: Sequence[int]) -> jax.Array:
    """Float32 logits [T V] at every position of one sequence, for evaluation."""
    size = len(listed(ids, "A prompt", "token ids"))
    batch = asked(engine, [ids], 1, length=size, slots=size, every=True)
    cache = new_cache(engine.params, jnp.asarray(batch.pad), batch.slots, engine.config, engine.placement)
    return engine.programs.logits(engine.params, jnp.asarray(batch.ids), cache)[0][0]
