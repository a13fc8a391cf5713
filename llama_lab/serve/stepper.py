"""One slot's programs, under any placement that steps: a prompt in chunks, then a token (or a chunk of them) a call.

A slot is a batch of one row with a cache of its own, so that its position, its padding and its seed are its own, and
its tokens are those of `llama-jax generate`, whatever other requests are served. Slots take turns. Prompts are read in
pieces of SIZES: few shapes, all of them compiled by `warm`. Other sizes, or none, serve to measure what that saves.

Only a prompt shorter than any piece is padded. In a longer one the last pieces begin early and read some tokens again,
so that each token has the same place in the cache whatever was kept of an earlier prompt: XLA's attention adds up along
the cache, and at another place it rounds otherwise.

Log probabilities come out of the same programs, which compute them only for requests that ask. Under a placement whose
call makes several tokens, such a request steps token by token, since a chunk keeps only those of its last token.

So does one whose answer follows a grammar: the batcher's walker says after each token which may be the next. Steps of
such requests have a program of their own, so that the others' is as it was; a prompt is always read with a mask, of all
tokens where no grammar is, since beside a prompt that costs nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax.decoding.steps import Carry
from llama_jax.generate import Engine
from llama_jax.placement import Placement
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Constrained, Draw, Mask, Sampler, Scores, TracedSampler, free
from llama_jax.transforms import new_cache, scorer

Sampling = TracedSampler | Constrained  # the latter with a mask bool [1 V]
LIKELY = 5  # alternatives to a prompt's tokens that are kept: the most that OpenAI's completions offer
SIZES = (16, 32, 64)  # tokens of prompt that one call takes; the last is a chunk, between two of which all others step


def check(placement: Placement) -> Placement:
    """The placement as a server runs it: sampling settings as arguments, so that a new temperature is no new program.

    Raises UserError for one whose requests cannot join and leave between steps.
    """
    for wrong, why in (
        (
            placement.until == "stop",
            "makes a whole answer in one call, which nobody joins or leaves; use step or chunk8",
        ),
        (placement.cache == "growing", "compiles anew for each length; use cache='fixed'"),
        (placement.drafts > 0, "makes as many tokens a call as its drafts are right; leave +lookup or +draft out"),
        (placement.host != "sync", "has a host loop of its own, and so has a server; leave its +modifier out"),
    ):
        if wrong:
            raise UserError(f"Placement {placement.name!r} {why}.")
    return replace(placement, sampling="traced")


class Score(NamedTuple):
    """Log probabilities of a token, and of the most likely ones in its place: (id, log probability), falling."""

    chosen: float
    best: list[tuple[int, float]]


class Piece(NamedTuple):
    """Tokens of a prompt that one call reads, int32 [1 T]. at: place of the first one in the prompt, which is below
    zero where padding comes first, and below the end of the piece before where some are read again."""

    at: int
    ids: np.ndarray


@dataclass(frozen=True)
class Made:
    """What a call made, on the device: tokens [n R] or [R], `Scores` of each, and which column is meant. epoch: of the
    cache that they came from, where that may be lost."""

    tokens: jax.Array
    scores: Scores | None = None
    at: int = 0
    epoch: int = 0


@dataclass(frozen=True)
class State:
    """What a slot keeps between calls. token [1]: the newest one, on the device; scores: its own."""

    token: jax.Array
    carry: Carry
    scores: Scores | None = None

    @property
    def made(self) -> Made:
        return Made(self.token, self.scores)


def state_of(token: jax.Array, carry: Carry) -> State:
    """What a program returned; the scores are taken out of what the next one is given."""
    return State(token, replace(carry, draw=replace(carry.draw, scores=None)), carry.draw.scores)


def answering(sampler: Sampling) -> TracedSampler:
    """The settings of a request that may ask for scores, though this one may not."""
    settings = free(sampler)
    return settings if settings.scored is not None else replace(settings, scored=np.False_)


class Stepper:
    """A model under a placement, for slots of `context` tokens, prompt and answer together, a call each.

    sizes: the lengths, ascending, that a piece of prompt may have; none for exact ones, of which each new one compiles
    while somebody waits.
    """

    together = False  # whether all slots step in one call

    def __init__(self, engine: Engine, context: int, sizes: tuple[int, ...] = SIZES):
        self.engine, self.context, self.sizes = engine, context, sizes
        self.all = Mask(jnp.ones((1, engine.config.vocab_size), bool))

    @property
    def room(self) -> int:
        """Cache positions of a slot: padding comes before the prompt, and a chunk of tokens may run over the end."""
        return self.context + max(self.sizes, default=0) + self.engine.placement.tokens_per_call

    def pieces(self, ids: Sequence[int]) -> list[Piece]:
        """A prompt as the calls take it."""
        n, first = len(ids), largest(len(ids), self.sizes)
        if not first:
            return padded_pieces(ids, self.sizes)
        return [Piece(0, row(ids[:first])), *cut(ids, n - whole(n - first, self.sizes), self.sizes)]

    def scored_pieces(self, ids: Sequence[int]) -> list[tuple[Piece, Piece]]:
        """A prompt as `score` takes it, each piece with the tokens that follow; all of the longest size, so that there
        is one program."""
        return list(zip(*(padded_pieces(each, self.sizes[-1:]) for each in (ids, [*ids[1:], 0])), strict=True))

    def kept(self, held: Sequence[int], pad: int, ids: Sequence[int]) -> int:
        """Tokens of a prompt that need not run again where `held` are cached after `pad` places of padding: as many as
        leave whole pieces to run, and at least one. None after padding, which puts them where `pieces` does not."""
        if pad:
            return 0
        alike = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(held, ids, strict=False)))
        return max(len(ids) - whole(len(ids) - min(alike, len(ids) - 1), self.sizes), 0)

    @property
    def scores_prompts(self) -> bool:
        """Whether prompts can be scored piece by piece: without a cache each piece runs all before it again."""
        return self.engine.placement.cache != "none"

    def holds(self, state: State | None) -> bool:
        """Whether what a slot kept is still there."""
        return state is not None

    def mask(self, sampler: Sampling) -> Mask:
        """The tokens that a request may go on with."""
        return sampler.allowed if isinstance(sampler, Constrained) else self.all

    def begin(self, number: int, piece: np.ndarray, pad: int, seed: int, sampler: Sampling, last: bool = True) -> State:
        """The first piece of a prompt, into a cache of its own. number: the slot's. last: as `extend`'s."""
        pads, seeds = np.array([pad], np.int32), np.array([seed], np.uint32)
        settings, programs = Constrained(answering(sampler), self.mask(sampler)), self.engine.programs
        return state_of(*programs.prefill(self.engine.params, piece, pads, seeds, settings, slots=self.room))

    def extend(self, state: State, piece: np.ndarray, sampler: Sampling, last: bool = True) -> State:
        """One more piece. The token drawn after the last one is the answer's first. A stepper that can leave out the
        draw after the others looks at `last`."""
        settings = Constrained(answering(sampler), self.mask(sampler))
        return state_of(*self.engine.programs.extend(self.engine.params, piece, state.carry, settings))

    def score(
        self, number: int, state: State | None, piece: np.ndarray, following: np.ndarray, pad: int
    ) -> tuple[Made, State]:
        """One more piece of a prompt that is scored, the first of which finds no state → (log probabilities of the
        tokens that follow, the state). `resume` it before it answers."""
        config, placement = self.engine.config, self.engine.placement
        pads = jnp.asarray(np.array([pad], np.int32))
        cache = state.carry.cache if state else new_cache(self.engine.params, pads, self.room, config, placement)
        found, cache = scorer(config, placement, LIKELY)(self.engine.params, piece, following, cache)
        return Made(following.T, found), State(following, Carry(cache, None))

    def step(self, states: Sequence[State], samplers: Sequence[Sampling]) -> list[tuple[Made, State]]:
        """Of each slot that steps in a call (its next tokens, not yet awaited, for `fetch`; the state after them)."""
        programs, after = self.engine.programs, []
        for state, sampler in zip(states, samplers, strict=True):
            arguments, settings = (self.engine.params, state.token, state.carry), answering(sampler)
            if isinstance(sampler, Constrained):
                stepped = state_of(*programs.step(*arguments, replace(sampler, settings=settings)))
                after.append((stepped.made, stepped))
            elif self.engine.placement.jits_decode and not settings.scored:
                tokens, _, token, carry = programs.decode(*arguments, replace(settings, scored=None))
                after.append((Made(tokens), State(token, carry)))
            else:
                stepped = state_of(*programs.step(*arguments, settings))
                after.append((stepped.made, stepped))
        return after

    def fetch(self, made: Made) -> list[int]:
        """Tokens on the host; waits for them."""
        return self.engine.fetch(made.tokens)[:, made.at].tolist()

    def scores(self, made: Made) -> list[Score]:
        """Of each token its log probabilities, for a request that asked."""
        rows, scores = made.tokens.shape[-1], made.scores
        chosen, ids, best = (
            np.asarray(part).reshape(-1, rows, *part.shape[made.tokens.ndim :])[:, made.at].tolist()
            for part in (scores.chosen, scores.ids, scores.best)
        )
        return [Score(one, list(zip(*each, strict=True))) for one, *each in zip(chosen, ids, best, strict=True)]

    def resume(self, state: State, ids: Sequence[int], seed: int, sampler: TracedSampler) -> State:
        """The slot with nothing but its first tokens `ids` in it, for another request that begins with them."""
        cache = state.carry.cache
        used = np.int32(len(ids)) + np.asarray(cache.pad)[0]
        seen = np.zeros((1, self.engine.config.vocab_size), bool)
        seen[0, list(ids)] = True
        keys = jax.vmap(jax.random.key)(np.array([seed], np.uint32))
        draw = Draw(keys, jnp.asarray(np.int32(0)), jnp.asarray(seen))
        return State(state.token, Carry(replace(cache, length=jnp.asarray(np.int32(used))), draw))

    def warm(self) -> None:
        """Compile every program that a request can need, by running each of them once."""
        sampler = Sampler(temperature=0.5).traced()
        for size in self.sizes or (1,):
            state = self.begin(0, np.zeros((1, size), np.int32), size - 1, 0, sampler)
        for size in self.sizes:  # a piece follows another, or what was left of a request before
            state = self.extend(self.resume(state, [0], 0, sampler), np.zeros((1, size), np.int32), sampler)
            state = self.extend(self.resume(state, [0], 0, sampler), np.zeros((1, size), np.int32), sampler)
        if self.scores_prompts:
            self.score_once()
        scored = replace(sampler, scored=np.True_)
        for each in (sampler, scored, Constrained(sampler, self.all)):
            ((made, state),) = self.step([state], [each])
            self.fetch(made)
        self.fetch(state.made)

    def score_once(self) -> None:
        """Compile what scores a prompt, and what goes on after it."""
        sampler, (size,) = Sampler(temperature=0.5).traced(), self.sizes[-1:] or (1,)
        blank, state = np.zeros((1, size), np.int32), None
        for _ in range(2):
            made, state = self.score(0, state, blank, blank, size - 1)
            self.scores(made)
        state = self.extend(self.resume(state, [0], 0, sampler), blank[:, : min(self.sizes, default=1)], sampler)
        self.fetch(state.made)


def row(ids: Sequence[int]) -> np.ndarray:
    return np.array(ids, np.int32)[None]


def largest(n: int, sizes: Sequence[int]) -> int:
    """The largest piece that n tokens fill, 0 if they fill none; n where there are no sizes."""
    return max((size for size in sizes if size <= n), default=0) if sizes else n


def whole(n: int, sizes: Sequence[int]) -> int:
    """n tokens rounded up to whole pieces of the smallest size."""
    return -(-n // (least := min(sizes, default=1))) * least


def cut(ids: Sequence[int], at: int, sizes: Sequence[int]) -> list[Piece]:
    """The tokens from a place on, a multiple of the smallest size, in as few pieces as there may be."""
    cuts = []
    while at < len(ids):
        size = largest(len(ids) - at, sizes)
        cuts.append(Piece(at, row(ids[at : at + size])))
        at += size
    return cuts


def padded_pieces(ids: Sequence[int], sizes: Sequence[int]) -> list[Piece]:
    """A prompt after as much padding as it takes."""
    size = padded(len(ids), sizes)
    chunk, pad, padded_ids = max(sizes, default=size), size - len(ids), np.zeros((1, size), np.int32)
    padded_ids[0, pad:] = ids
    return [Piece(i - pad, padded_ids[:, i : i + chunk]) for i in range(0, size, chunk)]


def padded(n: int, sizes: Sequence[int]) -> int:
    """Tokens and padding of a prompt of n that is padded: the next of the sizes, else whole pieces of the largest; n
    where there are none."""
    return next((size for size in sizes if size >= n), -(-n // sizes[-1]) * sizes[-1]) if sizes else n


def ran(n: int, sizes: Sequence[int]) -> int:
    """Tokens that run for a prompt of n in a slot of its own, with padding and with those that are read again."""
    first = largest(n, sizes)
    return first + whole(n - first, sizes) if first else padded(n, sizes)
