"""How far a model is loaded, told to whoever listens."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
Progress = Callable[[float, float], None]  # (bytes that are there, bytes of the whole)
AFTER_S = 2.0  # what is loaded sooner needs no words
_listeners: list[Progress] = []


@contextlib.contextmanager
def heard(progress: Progress) -> Iterator[None]:
    """Calls progress(bytes so far, of how many) when a loading begins inside, in any thread, and after each of its
    parts. Of listeners within one another the innermost hears."""
    _listeners.append(progress)
    try:
        yield
    finally:
        _listeners.remove(progress)


def tell(done: float, total: float) -> None:
    for listener in _listeners[-1:]:
        listener(min(done, total), total)


def told(parts: Iterable[T], size: Callable[[T], float], total: float) -> Iterator[T]:
    """The parts of what is loaded, as they come. size: bytes of one."""
    done = 0.0
    tell(done, total)
    for part in parts:
        done += size(part)
        tell(done, total)
        yield part


def lines(say: Callable[[str], None], every_s: float, doing: str = "loading") -> Progress:
    """A listener that says lines, from AFTER_S on and then one in so many seconds: bytes so far, of how many, and about
    how long the rest takes; and that it is done, where more than a single line is wanted."""
    began = due = 0.0

    def hear(done: float, total: float) -> None:
        nonlocal began, due
        now = time.monotonic()
        if not done:
            began, due = now, now + AFTER_S
        elif now >= due and done < total:
            due, left = now + every_s, (now - began) * (total - done) / done
            say(f"{doing}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB, about {left:.0f} s left")
        elif done >= total and began + AFTER_S < due < math.inf:
            say(f"{doing}: all {total / 1e6:,.0f} MB after {now - began:.0f} s")

    return hear
