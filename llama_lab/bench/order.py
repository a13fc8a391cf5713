"""The order in which things are done, seeded: what is asked next must not follow from what was asked before."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def shuffled(items: Sequence[T], seed: int, *key: object) -> list[T]:
    """All items in an order that follows from the seed and the key alone, so that a run may be split and resumed."""
    return random.Random(" ".join(map(str, (seed, *key)))).sample(items, len(items))
