"""What is asked, and of whom: a workload and a subject. Placements and peers look the same here.

Imports nothing but what running a model needs, so that a bare machine can measure with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from llama_jax import generate
from llama_jax.checkpoint import Checkpoint
from llama_jax.plumbing.values import LARGEST, listed, whole
from llama_jax.sampling import Sampler
from llama_lab.bench.guard import Guard, Region

T = TypeVar("T")
GROWING, EXACT, BUCKETS = "growing cache", "exact lengths", "package's buckets"
POWERS, ONE = "powers of two", "one shape"
RANGES = {"new_tokens": (1, LARGEST), "length": (1, LARGEST), "batch": (1, 1 << 16), "seed": (0, LARGEST)}


@dataclass(frozen=True)
class Workload:
    """What every subject is asked: prompts (texts, or token ids if there is no tokenizer) × new tokens, and how a
    token is chosen. Row i of a batch draws with seed + i. Raises UserError for invalid sizes."""

    prompts: tuple[str | tuple[int, ...], ...]
    new_tokens: int
    length: int  # padded prompt length, the same for all prompts so that shapes are exact
    batch: int = 1
    seed: int = 0
    sampler: Sampler = generate.GREEDY

    def __post_init__(self):
        prompts = listed(self.prompts, "prompts", "texts, or lists of token ids")
        ready = tuple(p if isinstance(p, str) else tuple(listed(p, "A prompt", "token ids")) for p in prompts)
        object.__setattr__(self, "prompts", ready)
        for name, (least, most) in RANGES.items():
            object.__setattr__(self, name, whole(getattr(self, name), name, least, most))

    @classmethod
    def from_json(cls, values: dict) -> Workload:
        """A workload as `dataclasses.asdict` and JSON have left it."""
        return cls(**values | {"sampler": Sampler(**values.get("sampler", {}))})

    @property
    def slots(self) -> int:
        return generate.bucket(self.length + self.new_tokens)


@dataclass(frozen=True)
class Subject:
    """run(prompt, workload) yields blocks of token ids [n B]; `encode` turns a prompt into ids.

    guard: makes the region that watches a timed run, `Guard` for JAX and `TorchGuard` for PyTorch. counter: the same
    for a first request, in which compiling is counted and not forbidden (`TorchCounter`). reported: what the subject
    itself says of its last request, as fields of a Trial; asked after the clock has stopped. sampler: its own, in the
    place of the workload's.
    """

    name: str
    backend: str
    placement: str
    run: Callable[[Sequence[int], Workload], Iterator[np.ndarray]]
    encode: Callable[[str | tuple[int, ...]], list[int]]
    identity: dict = field(default_factory=dict)  # the Trial fields that are the subject's own
    guard: Callable[[], Region] = Guard
    counter: Callable[[], Region] = Guard
    reported: Callable[[], dict] = dict
    sampler: Sampler | None = None

    def asked(self, workload: Workload) -> Workload:
        """The workload as this subject is asked it."""
        return replace(workload, sampler=self.sampler) if self.sampler else workload


def encoder(checkpoint: Checkpoint) -> Callable:
    """Prompt → ids: texts through the tokenizer (the chat template has been applied), ids as they are."""
    return lambda prompt: (
        checkpoint.tokenizer.encode(prompt, special=False, allow_special_tokens=True)
        if isinstance(prompt, str)
        else list(prompt)
    )


@dataclass(frozen=True)
class Policy:
    """How shapes are chosen. positions(n, most): what n is rounded up to; `most` is the stream's largest n."""

    positions: Callable[[int, int], int]
    placement: str = "step"

    def shape(self, tokens: int, longest: int, new_tokens: int) -> tuple[int, int]:
        """(padded prompt length T, cache slots S) of a request of so many prompt tokens."""
        length = self.positions(tokens, longest)
        needed = length + new_tokens - 1  # the last token never goes into the cache
        return length, self.positions(needed, needed)


POLICIES = {
    GROWING: Policy(lambda n, most: n, "step+growing"),
    EXACT: Policy(lambda n, most: n),
    BUCKETS: Policy(lambda n, most: generate.bucket(n)),
    POWERS: Policy(lambda n, most: 1 << (n - 1).bit_length()),
    ONE: Policy(lambda n, most: generate.bucket(most)),
}


@dataclass(frozen=True)
class Shaped(Workload):
    """A workload whose cache has exactly `room` slots."""

    room: int = 0

    @property
    def slots(self) -> int:
        return self.room


def shuffled(items: Sequence[T], seed: int, *key: object) -> list[T]:
    """All items in an order that follows from the seed and the key alone, so that a run may be split and resumed."""
    return random.Random(" ".join(map(str, (seed, *key)))).sample(items, len(items))


def blocks(items: Sequence[T], count: int, seed: int, *key: object) -> Iterator[tuple[int, int, T]]:
    """(block, place in it, item): every item once in each of `count` blocks, shuffled by seed, key and block."""
    for block in range(count):
        for place, item in enumerate(shuffled(items, seed, *key, block)):
            yield block, place, item
