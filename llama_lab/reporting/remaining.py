"""The current step and the estimated time left: one plain line every minute, with or without a terminal."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

EVERY_S = 60.0
ENOUGH = 0.15  # share of a step after which its own pace says more than what was expected


class Remaining:
    """`with Remaining(steps, tell).spoken() as rest:`, in it `rest.begin(step)` and `rest.progress(what, done, total)`.

    steps: name → seconds that it is expected to take, in the order in which they come.
    """

    def __init__(self, steps: dict[str, float], tell: Callable[[str], None], every_s: float = EVERY_S):
        self.steps, self.tell, self.every_s = steps, tell, every_s
        self.step, self.what, self.share = next(iter(steps)), "", 0.0
        self.start = self.began = time.monotonic()

    def begin(self, step: str) -> None:
        self.step, self.what, self.share, self.began = step, "", 0.0, time.monotonic()
        self.tell(self.line())

    def progress(self, what: str, done: int, total: int) -> None:
        self.what, self.share = what, done / total if total else 0.0

    def line(self, now: float | None = None) -> str:
        """`2 min: the headline (block 3: loop); about 5 min left, then 20 notebooks, the report`."""
        now = time.monotonic() if now is None else now
        names = list(self.steps)
        later = names[names.index(self.step) + 1 :]
        left = rest(self.steps[self.step], now - self.began, self.share) + sum(self.steps[name] for name in later)
        what = f" ({self.what})" if self.what else ""
        then = f", then {', '.join(later)}" if later else ""
        return f"{(now - self.start) / 60:.0f} min: {self.step}{what}; about {minutes(left)} left{then}"

    @contextlib.contextmanager
    def spoken(self) -> Iterator[Remaining]:
        """Say the line every minute until the block ends."""
        with every(self.every_s, lambda: self.tell(self.line())):
            yield self


@contextlib.contextmanager
def every(seconds: float, do: Callable[[], object]) -> Iterator[None]:
    """Call a function at an interval in seconds, in a thread that ends with the block."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            do()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def rest(expected: float, spent: float, share: float) -> float:
    """Seconds left of a step with this share done: by its own pace once there is one."""
    return spent * (1 - share) / share if share > ENOUGH else max(expected - spent, 0.0)


def minutes(seconds: float) -> str:
    """`3 min`; `1 min` for less than that."""
    return f"{max(1, round(seconds / 60))} min"
