"""Loading progress on standard error: one changing line on a terminal, elsewhere a plain line once or from time to
time."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator

from llama_jax.plumbing import progress
from llama_lab.cli import common

EVERY_S = 0.2


class Line:
    """The terminal's last line."""

    def __init__(self):
        self.width = 0

    def write(self, line: str) -> None:
        with contextlib.suppress(OSError):
            print(f"\r{line:{self.width}}", end="\r" * (not line), file=sys.stderr, flush=True)
        self.width = len(line)

    def erase(self) -> None:
        if self.width:
            self.write("")


@contextlib.contextmanager
def shown(doing: str = "loading", every_s: float = math.inf) -> Iterator[None]:
    """Show the progress of a model that is loaded inside, unless --quiet. every_s: seconds between two plain lines."""
    if not common.bars_shown():
        with progress.heard(progress.lines(common.tell, every_s, doing)):
            yield
        return
    line = Line()
    say = progress.lines(line.write, EVERY_S, doing)

    def hear(done: float, total: float) -> None:
        say(done, total)
        if done >= total:  # leave the line to the output that follows
            line.erase()

    try:
        with progress.heard(hear):
            yield
    finally:
        line.erase()
