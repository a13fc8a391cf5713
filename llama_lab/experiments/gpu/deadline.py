"""Measuring against the clock: how much time is left, and what a thing that is begun will take of it."""

from __future__ import annotations

import time
from collections.abc import Callable


class Budget:
    """Seconds since it was made, against a limit. clock: seconds, monotonic."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic):
        self.limit_s, self.clock, self.began = limit_s, clock, clock()

    @property
    def spent(self) -> float:
        return self.clock() - self.began

    def left(self, until: float = 1.0) -> float:
        """Seconds until this share of the limit is spent; negative afterwards."""
        return self.limit_s * until - self.spent


class Costs:
    """What things have cost so far, so as to guess what they will cost again. A cost grows with a size, such as
    layers."""

    def __init__(self, guesses: dict[str, float], default: float):
        self.guesses, self.default = guesses, default  # seconds a unit of size, by the longest prefix of the name
        self.known: dict[str, float] = {}

    def expected(self, name: str, size: float) -> float:
        """Seconds that `name` will take: as the last time it did, else as guessed."""
        like = max((prefix for prefix in self.guesses if name.startswith(prefix)), key=len, default="")
        return size * self.known.get(name, self.guesses.get(like, self.default))

    def learn(self, name: str, size: float, seconds: float) -> None:
        self.known[name] = seconds / size
