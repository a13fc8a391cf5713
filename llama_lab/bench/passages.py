"""Prompts of exact length that no cache can know: a different passage for each request."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from llama_jax import checkpoint, generate, prompts
from llama_jax.checkpoint import Checkpoint
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import Tokenizer
from llama_lab import corpus
from llama_lab.bench import protocol
from llama_lab.bench.workload import Workload

PROMPTS = 4  # different prompts, so that no subject can live off one

TRIES = 20  # places in the text at which a passage may begin with a given token


def passages(loaded: Checkpoint, lengths: Sequence[int], seed: int = 0) -> list[str | tuple[int, ...]]:
    """One passage per length, with exactly that many tokens; no two begin with the same token.

    English from Python's manual, from the beginning of a word, at places drawn from the seed; for a model without a
    tokenizer random ids, no two alike. Raises UserError when the text has no more beginnings to offer.
    """
    if loaded.tokenizer is None:
        return random_passages(loaded.config.vocab_size, lengths, seed)
    rng, text = random.Random(seed), corpus.manual()
    encoding = loaded.tokenizer.backend.encode(text, add_special_tokens=False)
    ids, places = encoding.ids, {}
    for i, (token, (start, _)) in enumerate(zip(ids, encoding.offsets, strict=True)):
        if text[start : start + 1].isspace() or text[max(start - 1, 0)].isspace():
            places.setdefault(token, []).append(i)
    beginnings = iter(rng.sample(sorted(places), len(places)))
    chosen = []
    for n in lengths:
        tries = (rng.sample(places[token], min(TRIES, len(places[token]))) for token in beginnings)
        passage = next(filter(None, (cut(loaded.tokenizer, ids, places_of, n) for places_of in tries)), None)
        if passage is None:
            raise UserError(
                f"{len(lengths)} passages of up to {max(lengths)} tokens are asked for; the text has {len(chosen)} that"
                " begin differently. Ask for fewer blocks, starts or tail requests."
            )
        chosen.append(passage)
    return chosen


def cut(tokenizer: Tokenizer, ids: Sequence[int], places: Sequence[int], n: int) -> str | None:
    """The first passage of n tokens at one of these places that reads back as the very same tokens; None if none
    does."""
    for i in places:
        wanted = ids[i : i + n]
        if len(wanted) == n and tokenizer.encode(text := tokenizer.decode(wanted), special=False) == wanted:
            return text
    return None


def random_passages(vocabulary: int, lengths: Sequence[int], seed: int) -> list[tuple[int, ...]]:
    """Random ids of each length, no two passages alike."""
    rng, chosen = random.Random(seed), {}
    for n in lengths:
        most = vocabulary**n
        if sum(len(passage) == n for passage in chosen) >= most:
            raise UserError(f"There are no more than {most} different prompts of {n} tokens; ask for longer ones.")
        while (passage := tuple(rng.randrange(vocabulary) for _ in range(n))) in chosen:
            pass
        chosen[passage] = True
    return list(chosen)


def science(loaded: Checkpoint, questions: Sequence[str], new_tokens: int, seed: int = 0) -> Workload:
    """Questions as chat prompts; for a model without a tokenizer, as many prompts of random ids of like length."""
    if loaded.tokenizer is None:
        ids = random_prompts(loaded.config.vocab_size, 40, seed, len(questions))
        return Workload(ids, new_tokens, generate.bucket(40), seed=seed)
    texts = prompts.as_chat(loaded.tokenizer, questions)
    longest = max(len(loaded.tokenizer.encode(text, special=False, allow_special_tokens=True)) for text in texts)
    return Workload(texts, new_tokens, generate.bucket(longest), seed=seed)


def exact_length(loaded: Checkpoint, workload: Workload) -> Workload:
    """The workload with its first prompt alone, and no padding before it."""
    first = workload.prompts[0]
    return replace(workload, prompts=(first,), length=len(protocol.encoder(loaded)(first)))


def random_prompts(vocabulary: int, tokens: int, seed: int, count: int = PROMPTS) -> tuple[tuple[int, ...], ...]:
    """Prompts of exactly the wanted length: seeded random ids."""
    rng = random.Random(seed)
    return tuple(tuple(rng.randrange(vocabulary) for _ in range(tokens)) for _ in range(count))


def check_context(config, workload: Workload) -> None:
    needed, room = workload.length + workload.new_tokens, config.max_position_embeddings
    if needed > room:
        raise UserError(f"{needed} tokens of prompt and answer exceed the model's context of {room}; ask for fewer.")


def english(loaded: Checkpoint, tokens: int, seed: int = 0) -> list[int]:
    """Ids of this many tokens of Python's manual, an English text; random ids for a model without a tokenizer."""
    if loaded.tokenizer is None:
        return list(random_prompts(loaded.config.vocab_size, tokens, seed, 1)[0])
    return loaded.tokenizer.encode(corpus.manual()[: 12 * tokens])[:tokens]


def check_contexts(model: str, contexts: Sequence[int], new_tokens: int) -> None:
    """Raises UserError for a context without room for a prompt, or beyond the model's own."""
    room = checkpoint.load_config(model).max_position_embeddings
    if new_tokens < 2:
        raise UserError(f"new_tokens is {new_tokens}; a rate needs two tokens.")
    for context in contexts:
        if context <= new_tokens:
            raise UserError(f"context is {context}; with {new_tokens} new tokens it leaves no room for a prompt.")
        if context > room:
            raise UserError(f"context is {context}, more than the model's {room}; ask for a shorter one.")


def filling(loaded: Checkpoint, context: int, new_tokens: int, seed: int = 0) -> Workload:
    """Prompts of exactly so many tokens that a context is full after `new_tokens` more."""
    length = context - new_tokens
    return Workload(tuple(passages(loaded, [length] * PROMPTS, seed)), new_tokens, length, seed=seed)
