"""Many requests, prompts in and texts out: tokenise → transform → detokenise, each in its own thread.

The host works on text while the device computes. Bounded queues connect the threads; requests keep their order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from tokenizers.decoders import DecodeStream

from llama_jax import generate
from llama_jax.generate import Engine
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.threads import ahead
from llama_jax.tokenizer import Numbers, Tokenizer

BOUND = 8  # items between two stages


class Piece(NamedTuple):
    """The text that one block of tokens adds to one request; "" while a character is incomplete."""

    request: int  # index of its prompt
    text: str
    token_ids: tuple[int, ...]


def reader(tokenizer: Tokenizer | Numbers) -> Callable[[Iterable[int]], str]:
    """A function from an answer's next token ids to the text that they add. One reader per answer."""
    if isinstance(tokenizer, Numbers):
        written = iter([""])
        return lambda ids: "".join(next(written, " ") + str(int(i)) for i in ids)
    stream = DecodeStream(skip_special_tokens=True)
    return lambda ids: "".join(stream.step(tokenizer.backend, int(i)) or "" for i in ids)


def serve(
    engine: Engine,
    tokenizer: Tokenizer | Numbers,
    prompts: Iterable[str | Sequence[int]],
    new_tokens: int,
    bound: int = BOUND,
    stop: Sequence[int] | None = None,
    allow_special_tokens: bool = False,
    **options,
) -> Iterator[Piece]:
    """Answers to prompts (texts or token ids), piece by piece, one request after the other.

    allow_special_tokens: the texts contain their special tokens, as rendered chats do; otherwise they are plain text
    and get the special tokens that the model expects around text.

    bound: items that wait between two stages; 0 does the same work in the reader's thread, one step after the other.
    stop: tokens that end an answer, the tokenizer's by default. Other options as for `generate.stream`; any placement
    works. An error in any stage is raised here at once. Closing the iterator ends all threads.
    """
    if bound < 0:
        raise UserError(f"bound is {bound}; it must be 0 (one thread) or more.")
    stop = tokenizer.stop if stop is None else stop

    def stage(items: Iterator, name: str) -> Iterator:
        return ahead(items, bound, name) if bound else items

    tokenised = stage(tokenise(tokenizer, prompts, allow_special_tokens), "tokenise")
    transformed = stage(transform(engine, tokenised, new_tokens, stop=stop, **options), "transform")
    return stage(detokenise(tokenizer, transformed), "detokenise")


def tokenise(
    tokenizer: Tokenizer | Numbers, prompts: Iterable[str | Sequence[int]], rendered: bool = False
) -> Iterator[list[int]]:
    """Token ids of each prompt. rendered: the texts hold their own special tokens."""
    for prompt in prompts:
        yield tokenizer.encode(prompt, not rendered, rendered) if isinstance(prompt, str) else list(prompt)


def transform(
    engine: Engine, requests: Iterator[list[int]], new_tokens: int, **options
) -> Iterator[tuple[int, np.ndarray, bool]]:
    """(index of the request, tokens [n], False) as they arrive, and (index, no tokens, True) when its answer ends."""
    with contextlib.closing(requests):
        for i, ids in enumerate(requests):
            with contextlib.closing(generate.stream(engine, [ids], new_tokens, **options)) as blocks:
                for block in blocks:
                    yield i, block[:, 0], False
            yield i, block[:0, 0], True


def detokenise(tokenizer: Tokenizer | Numbers, blocks: Iterator[tuple[int, np.ndarray, bool]]) -> Iterator[Piece]:
    """Each block's text; an answer that ends within a character yields the incomplete character last."""
    with contextlib.closing(blocks):
        read, ids, so_far = reader(tokenizer), [], ""
        for i, tokens, ended in blocks:
            if ended:
                rest = tokenizer.decode(ids)[len(so_far) :]
                if rest:
                    yield Piece(i, rest, ())
                read, ids, so_far = reader(tokenizer), [], ""
                continue
            text = read(tokens)
            ids += tokens.tolist()
            so_far += text
            yield Piece(i, text, tuple(tokens.tolist()))
