"""The order in which things are done, seeded: what is asked next must not follow from what was asked before."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def shuffled(items: Sequence[T], seed: int, *key: object) -> list[T]:
    """All items in an order that follows from the seed and the key alone, so that a run may be split and resumed."""
    return random.Random(" ".join(map(str, (seed, *key)))).sample(items, len(items))


def blocks(items: Sequence[T], count: int, seed: int, *key: object) -> Iterator[tuple[int, int, T]]:
    """(block, place in it, item): every item once in each of `count` blocks, shuffled by the seed, the key and the
    block's number."""
    for block in range(count):
        for place, item in enumerate(shuffled(items, seed, *key, block)):
            yield block, place, item
