"""What is asked, and when: an open-loop load, the same for every server.

Lengths come from a text that every Python carries, its language's manual: a prompt is as long as one of its paragraphs,
an answer as long as one of its sentences, four characters a token. Both have many short ones and a few long ones.
Prompts are passages of the same manual, and no two begin alike: no server saves itself the beginning of one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from llama_jax.checkpoint import Checkpoint
from llama_lab import corpus
from llama_lab.bench import passages

CHARACTERS = 4  # a token, about
PROMPTS, ANSWERS = (4, 240), (2, 64)  # least and most tokens; what is longer in the manual is taken to be the most
SENTENCE = re.compile(r"(?<=[.:?!])\s+")


@dataclass(frozen=True)
class Ask:
    """A request: when it is due, in seconds since the load began, its text, and the tokens of prompt and answer."""

    due: float
    text: str
    prompt_tokens: int
    new_tokens: int


@cache
def lengths() -> tuple[list[int], list[int]]:
    """Tokens of the manual's paragraphs and of its sentences, within PROMPTS and ANSWERS."""
    paragraphs = corpus.paragraphs()
    sentences = [part for paragraph in paragraphs for part in SENTENCE.split(paragraph) if part]

    def tokens(texts: Sequence[str], least: int, most: int) -> list[int]:
        return [min(max(len(text) // CHARACTERS, least), most) for text in texts]

    return tokens(paragraphs, *PROMPTS), tokens(sentences, *ANSWERS)


def count(rate: float, seconds: float) -> int:
    """Requests at a rate: as many as arrive in that time on average."""
    return max(round(rate * seconds), 1)


def arrivals(rate: float, n: int, seed: int) -> list[float]:
    """When n requests are due, in seconds: a Poisson process, so that who asks does not look at who answers."""
    return np.random.default_rng([seed, round(1000 * rate)]).exponential(1 / rate, n).cumsum().tolist()


def asks(loaded: Checkpoint, rates: Sequence[float], seconds: float, seed: int) -> dict[float, list[Ask]]:
    """The requests of each rate. A model without a tokenizer is asked random ids, written as numbers."""
    drawn, (prompts, answers) = random.Random(seed), lengths()
    wanted = {rate: count(rate, seconds) for rate in sorted(set(rates))}
    sizes = [drawn.choice(prompts) for _ in range(sum(wanted.values()))]
    texts = (p if isinstance(p, str) else " ".join(map(str, p)) for p in passages.passages(loaded, sizes, seed))
    asked = zip(texts, sizes, strict=True)
    return {
        rate: [Ask(due, *next(asked), drawn.choice(answers)) for due in arrivals(rate, n, seed)]
        for rate, n in wanted.items()
    }
