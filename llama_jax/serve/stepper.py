"""One slot's programs, under any placement that steps: a prompt in chunks, then a token (or a chunk of them) a call.

A slot is a batch of one row with a cache of its own, so that its position, its padding and its seed are its own, and
its tokens are those of `llama-jax generate`, whoever else is served. Slots take turns. Prompts are padded on the left
to one of SIZES, or to whole chunks: few shapes, all of them compiled by `warm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax import generate, memory
from llama_jax.errors import UserError
from llama_jax.generate import Engine
from llama_jax.model.sampling import Draw, Sampler, TracedSampler
from llama_jax.placement import Placement
from llama_jax.steps import Carry

SIZES = (16, 32, 64)  # tokens of prompt that one call takes; the last is a chunk, between two of which all others step
CHUNK = SIZES[-1]
NO_STOP = np.array([-1], np.int32)


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
        (placement.drafts > 0, "makes as many tokens a call as its drafts are right; leave +lookup out"),
        (placement.host != "sync", "has a host loop of its own, and so has a server; leave its +modifier out"),
    ):
        if wrong:
            raise UserError(f"Placement {placement.name!r} {why}.")
    return replace(placement, sampling="traced")


@dataclass(frozen=True)
class State:
    """What a slot keeps between calls. token [1]: the newest one, on the device."""

    token: jax.Array
    carry: Carry

    @property
    def pad(self) -> jax.Array:
        return self.carry.cache.pad


@dataclass(frozen=True)
class Stepper:
    """A model under a placement, for slots of `context` tokens, prompt and answer together."""

    engine: Engine
    context: int

    @property
    def room(self) -> int:
        """Cache positions of a slot: padding comes before the prompt, and a chunk of tokens may run over the end."""
        return self.context + CHUNK + self.tokens_per_call

    @property
    def tokens_per_call(self) -> int:
        return self.engine.placement.tokens_per_call

    def pieces(self, ids: Sequence[int]) -> tuple[list[np.ndarray], int]:
        """A prompt as the calls take it, int32 [1 T] each, and the padding before its first token."""
        size = next((size for size in SIZES if size >= len(ids)), -(-len(ids) // CHUNK) * CHUNK)
        padded = np.zeros((1, size), np.int32)
        padded[0, size - len(ids) :] = ids
        return [padded[:, i : i + CHUNK] for i in range(0, size, CHUNK)], size - len(ids)

    def begin(self, piece: np.ndarray, pad: int, seed: int, sampler: TracedSampler) -> State:
        """The first piece of a prompt, into a cache of its own."""
        pads, seeds = np.array([pad], np.int32), np.array([seed], np.uint32)
        return State(*self.engine.programs.prefill(self.engine.params, piece, pads, seeds, sampler, self.room))

    def extend(self, state: State, piece: np.ndarray, sampler: TracedSampler) -> State:
        """One more piece. The token drawn after the last one is the answer's first."""
        return State(*self.engine.programs.extend(self.engine.params, piece, state.carry, sampler))

    def step(self, state: State, sampler: TracedSampler) -> tuple[jax.Array, State]:
        """(the next tokens [n 1], not yet awaited, and the state after them)."""
        programs, params = self.engine.programs, self.engine.params
        if self.engine.placement.jits_decode:
            tokens, _, token, carry = programs.decode(params, state.token, state.carry, sampler, NO_STOP, 0, None, None)
            return tokens, State(token, carry)
        token, carry = programs.step(params, state.token, state.carry, sampler)
        return token, State(token, carry)

    def fetch(self, tokens: jax.Array) -> list[int]:
        """Tokens on the host; waits for them."""
        return self.engine.fetch(tokens)[:, 0].tolist()

    def rewound(self, state: State, ids: Sequence[int], seed: int) -> State:
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
        for size in SIZES:
            state = self.begin(np.zeros((1, size), np.int32), size - 1, 0, sampler)
        for size in SIZES:  # a piece follows another, or what was left of a request before
            state = self.extend(self.rewound(state, [0], 0), np.zeros((1, size), np.int32), sampler)
            state = self.extend(self.rewound(state, [0], 0), np.zeros((1, size), np.int32), sampler)
        tokens, _ = self.step(state, sampler)
        self.fetch(tokens)
        self.fetch(state.token)


def build(engine: Engine, context: int, slots: int) -> Stepper:
    """The stepper of so many slots. Raises UserError where the model has less context, or the machine less memory."""
    most = engine.config.max_position_embeddings
    if not 2 <= context <= most:
        raise UserError(f"--context is {context}; this model has contexts of 2 to {most} tokens.")
    stepper = Stepper(engine, context)
    needed = slots * generate.need(engine, False, 1, CHUNK, stepper.room)
    memory.check(needed, f"{slots} slots of {context} tokens", "ask for fewer slots or a smaller context")
    return stepper
