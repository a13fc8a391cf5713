"""Log-likelihood of texts: how probable a model finds them, for perplexity and multiple choice.

A text runs in pieces through the model's cache. Only the log probabilities of its own tokens leave a piece's program,
so memory does not grow with length times vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import numpy as np

from llama_jax.decoding.request import bucket, padded, token_ids
from llama_jax.engine import Engine, bytes_needed
from llama_jax.plumbing import memory, threads
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import listed
from llama_jax.tokenizer import Numbers, Tokenizer
from llama_jax.transforms import new_cache, scorer

SIZES = (64, 48, 32, 24, 16)  # positions of a piece; one of them divides each of `bucket`'s lengths
ROWS = 8  # texts of a call at most
LOGITS = 1 << 25  # numbers of a call at most, float32


@dataclass(frozen=True, eq=False)
class Likelihood:
    """How probable a text is, each token given those before it. The first is not scored: nothing is before it.

    token_ids: the scored tokens. logprobs: float32 [n], their natural log probabilities. best: bool [n], whether each
    is the most likely one.
    """

    token_ids: tuple[int, ...]
    logprobs: np.ndarray
    best: np.ndarray

    @cached_property
    def total(self) -> float:
        """The text's log-likelihood, in nats."""
        return float(self.logprobs.sum(dtype=np.float64))

    @property
    def perplexity(self) -> float:
        """That of its tokens (Jelinek et al. 1977, https://doi.org/10.1121/1.2016299)."""
        return perplexity(self.total, len(self.token_ids))


def perplexity(total: float, tokens: int) -> float:
    """exp of the mean negative log probability of so many tokens; infinity beyond a float's range."""
    with np.errstate(over="ignore"):
        return float(np.exp(-total / tokens))


def score(
    engine: Engine,
    texts: Sequence[str | Sequence[int]],
    contexts: Sequence[str | Sequence[int]] | None = None,
    tokenizer: Tokenizer | Numbers | None = None,
) -> list[Likelihood]:
    """The likelihood of each text, given as token ids, or as text with the tokenizer that reads it.

    contexts: what stands before each text and is not scored, such as the question of several choices; of the same kind
    as the texts. A token of both, where the tokenizer makes such, is scored. Texts of like length share a call and its
    program. Raises UserError for text without a tokenizer, for nothing to score, and for more tokens than the model's
    context or the machine's memory holds, before any work.
    """
    threads.COMPUTING.check()
    texts = listed(texts, "texts", "texts, or of lists of token ids")
    before = (
        [None] * len(texts) if contexts is None else listed(contexts, "contexts", "texts, or of lists of token ids")
    )
    if len(before) != len(texts):
        raise UserError(f"There are {len(texts)} texts and {len(before)} contexts; give one context a text.")
    read = [encoded(engine, f"Text {i}", *pair, tokenizer) for i, pair in enumerate(zip(texts, before, strict=True))]
    found: dict[int, Likelihood] = {}
    calls = list(batches(engine, [len(ids) - 1 for ids, _ in read]))
    for length, rows, _ in calls:
        check_memory(engine, length, rows)
    for length, rows, chosen in calls:
        found |= zip(chosen, run(engine, [read[i] for i in chosen], length, rows), strict=True)
    return [found[i] for i in range(len(read))]


def encoded(engine: Engine, name: str, text, context, tokenizer) -> tuple[list[int], int]:
    """(ids of a text and its context, how many of them are not scored). Raises UserError."""
    if isinstance(text, str):
        if tokenizer is None:
            raise UserError(f"{name} is text; give the tokenizer that reads it, or token ids.")
        if not isinstance(context, str | None):
            raise UserError(f"{name} is text and its context is not; give both as text, or both as token ids.")
        whole = tokenizer.encode((context or "") + text)
        fixed = alike(whole, tokenizer.encode(context or ""))
    else:
        fixed = 0 if context is None else len(listed(context, f"The context of {name.lower()}", "token ids"))
        whole = [*(context if fixed else ()), *listed(text, name, "token ids")]
    fixed, most = max(fixed, 1), engine.config.max_position_embeddings  # nothing is before the first
    if len(whole) <= fixed:
        raise UserError(f"{name} has no token to score; the first of all is not scored.")
    if len(whole) > most:
        raise UserError(f"{name} has {len(whole)} tokens; the model's context has {most}, give less of it.")
    return list(map(int, token_ids(whole, engine.config.vocab_size))), fixed


def alike(left: Sequence[int], right: Sequence[int]) -> int:
    """How many ids two lists begin with alike."""
    shortest = min(len(left), len(right))
    return next((i for i in range(shortest) if left[i] != right[i]), shortest)


def batches(engine: Engine, sizes: Sequence[int]) -> Iterator[tuple[int, int, list[int]]]:
    """(padded length, rows, which texts) of each call, for texts of so many tokens to run."""
    buckets: dict[int, list[int]] = {}
    for i, size in enumerate(sizes):
        buckets.setdefault(bucket(size), []).append(i)
    for length, members in sorted(buckets.items()):
        most = max(min(ROWS, LOGITS // (piece(length) * engine.config.vocab_size)), 1)
        rows = min(1 << (len(members) - 1).bit_length(), 1 << (most.bit_length() - 1))
        for start in range(0, len(members), rows):
            yield length, rows, members[start : start + rows]


def piece(length: int) -> int:
    """Positions of a call, of texts padded to this length."""
    return next(size for size in SIZES if length % size == 0)


def check_memory(engine: Engine, length: int, rows: int) -> None:
    needed = bytes_needed(engine, True, rows, piece(length), length)
    memory.check(needed, f"{rows} texts of {length} padded tokens", "give shorter texts")


def run(engine: Engine, texts: Sequence[tuple[list[int], int]], length: int, rows: int) -> list[Likelihood]:
    """Likelihoods of texts (ids, how many are not scored), in one batch of `rows` rows."""
    placement, size = replace(engine.placement, cache="fixed"), piece(length)
    program = scorer(engine.config, placement, 1)
    filled = [ids for ids, _ in texts] + [[0, 0]] * (rows - len(texts))
    ids, pad = padded([each[:-1] for each in filled], length)
    following, _ = padded([each[1:] for each in filled], length)
    cache, found = new_cache(engine.model, jax.numpy.asarray(pad), length, engine.config, placement), []
    for start in range(0, length, size):
        at = slice(start, start + size)
        scores, cache = program(engine.model, ids[:, at], following[:, at], cache)
        found.append((scores.chosen, scores.ids[..., 0]))
        threads.COMPUTING.check()
    chosen, best = (np.concatenate([np.asarray(part) for part in parts], axis=1) for parts in zip(*found, strict=True))
    return [
        Likelihood(tuple(ids[fixed:]), chosen[row, fixed - len(ids) :], best[row, fixed - len(ids) :] == ids[fixed:])
        for row, (ids, fixed) in enumerate(texts)
    ]
