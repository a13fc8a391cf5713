"""Loading progress of a model, reported to a listener."""

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
    """Calls progress(bytes so far, total bytes) when loading begins inside, in any thread, and after each part. Of
    nested listeners the innermost is called."""
    _listeners.append(progress)
    try:
        yield
    finally:
        _listeners.remove(progress)


def tell(done: float, total: float) -> None:
    for listener in _listeners[-1:]:
        listener(min(done, total), total)


def told(parts: Iterable[T], size: Callable[[T], float], total: float) -> Iterator[T]:
    """The loaded parts, as they arrive. size: bytes of one."""
    done = 0.0
    tell(done, total)
    for part in parts:
        done += size(part)
        tell(done, total)
        yield part


def lines(say: Callable[[str], None], every_s: float, doing: str = "loading") -> Progress:
    """A listener that prints lines, from AFTER_S on and then at intervals: bytes so far, total bytes and the estimated
    time left; and at last that it is done, if more than one line is wanted."""
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
