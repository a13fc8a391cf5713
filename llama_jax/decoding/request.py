"""Requests to a model: checked, padded to a batch, with the cache that they need.

Everything that a caller passes is checked here, before any work and before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from llama_jax.config import ModelConfig
from llama_jax.plumbing import memory
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import LARGEST, integer, listed, shown, whole

PIECE = 512  # longest prompt run in one call; longer ones go in pieces, which bounds memory and the number of programs
SEEDS = 2**32


def bucket(n: int) -> int:
    """The padded length of a prompt of n tokens: 16, 24, 32, 48, 64, 96 … 512, then multiples of 256.

    Few shapes to compile, and at most a third of a call is padding (a half below 16).
    """
    if n > PIECE:
        return -(-n // 256) * 256
    size = 16
    while size < n:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def padded(prompts: Sequence[Sequence[int]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids int32 [B T], pad int32 [B]): prompts padded on the left to `length`, and by how much each is padded."""
    ids, pad = np.zeros((len(prompts), length), np.int32), np.array([length - len(p) for p in prompts], np.int32)
    for row, prompt, start in zip(ids, prompts, pad, strict=True):
        row[start:] = prompt
    return ids, pad


@dataclass(frozen=True)
class Request:
    """A batch made ready for the device: prompts padded on the left to one length, and the cache they need."""

    ids: np.ndarray  # int32 [B T]
    pad: np.ndarray  # int32 [B]
    seeds: np.ndarray  # uint32 [B]
    stop: np.ndarray  # int32 [N]; -1, which no token is, if there is none
    new_tokens: int
    slots: int


def request(
    config: ModelConfig,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    seeds: Sequence[int] | int = 0,
    stop: Collection[int] = (),
    slots: int | None = None,
    length: int | None = None,
    need: Callable[[int, int, int], float] | None = None,
) -> Request:
    """Check a batch and pad it. Whole numbers and lists of them may be NumPy's.

    length: padded prompt length, default `bucket` of the longest. slots: cache positions. Neither may be more than
    twice what the model's context needs. need: the bytes that (rows, padded length, slots) will take, for which memory
    must be free. Raises UserError for anything but a list of lists of token ids, an empty prompt, an id outside the
    vocabulary, and more positions than the cache or the model has.
    """
    new_tokens = whole(new_tokens, "new_tokens", 1)
    sizes = [len(listed(p, "A prompt", "token ids")) for p in listed(prompts, "prompts", "prompts, each a list of ids")]
    if not sizes or not min(sizes):
        raise UserError("A prompt is empty; give at least one token.")
    longest, most = max(sizes), 2 * bucket(config.max_position_embeddings)
    if longest + new_tokens > config.max_position_embeddings:
        raise UserError(
            f"{longest} prompt tokens and {new_tokens} new ones exceed the model's context of"
            f" {config.max_position_embeddings}; ask for fewer."
        )
    length = bucket(longest) if length is None else whole(length, "length", 1, most)
    if length < longest:
        raise UserError(f"The prompt has {longest} tokens, more than the padded length of {length}.")
    needed = length + new_tokens - 1  # the last token is given out but never goes into the cache
    slots = bucket(needed) if slots is None else whole(slots, "slots", 1, most)
    if needed > slots:
        raise UserError(
            f"{length} padded prompt tokens and {new_tokens} new ones need {needed} cache slots; the cache has {slots}."
        )
    rows = len(sizes)
    memory.check(
        need(rows, length, slots) if need else 4 * rows * length,
        f"{rows} prompts of {length} padded tokens with {slots} cache slots",
        "ask for fewer prompts or tokens",
    )
    ids, pad = padded([token_ids(prompt, config.vocab_size) for prompt in prompts], length)
    return Request(ids, pad, check_seeds(seeds, rows), check_stop(stop, config.vocab_size), new_tokens, slots)


def token_ids(prompt: Sequence[int], vocabulary: int) -> Sequence[int]:
    """A prompt that is not empty and holds only token ids. Raises UserError otherwise."""
    if hasattr(prompt, "dtype"):
        prompt = np.asarray(prompt)
        if prompt.ndim != 1 or prompt.dtype.kind not in "iu":
            raise UserError(
                f"A prompt is an array of {prompt.dtype} with {prompt.ndim} axes; give token ids, whole numbers on one."
            )
        least, greatest = prompt.min(), prompt.max()
    else:
        if set(map(type, prompt)) != {int}:
            given, prompt = prompt, [integer(i) for i in prompt]
            if None in prompt:
                raise UserError(f"A token id is {shown(given[prompt.index(None)])}; it must be a whole number.")
        least, greatest = min(prompt), max(prompt)
    if least < 0 or greatest >= vocabulary:
        bad = least if least < 0 else greatest
        raise UserError(f"Token id {shown(int(bad))} is outside the vocabulary of {vocabulary}.")
    return prompt


def check_seeds(seeds: Sequence[int] | int, rows: int) -> np.ndarray:
    """One seed per row, uint32; a single seed s gives row i the seed s + i, so that equal prompts differ."""
    first = integer(seeds)
    given = listed(seeds, "seeds", "whole numbers, or a single one") if first is None else range(first, first + rows)
    if len(given) != rows:
        raise UserError(f"{len(given)} seeds for {rows} prompts; give one seed a prompt, or a single one.")
    return np.array([whole(s, "seed", 0, SEEDS - 1) for s in given], np.uint32)


def check_stop(stop: Collection[int], vocabulary: int) -> np.ndarray:
    """The stop tokens, each once, int32; -1 if there is none. They may be outside the vocabulary, because a tokenizer
    may have more tokens than the model."""
    given = stop if isinstance(stop, set | frozenset) else listed(stop, "stop", "token ids")
    if len(given) > vocabulary:
        raise UserError(f"There are {len(given)} stop tokens; the vocabulary has {vocabulary}.")
    return np.array(sorted({whole(i, "A stop token", 0, LARGEST) for i in given}) or [-1], np.int32)
