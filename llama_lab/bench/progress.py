"""Progress of a measurement: progress(what, done, total)."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

VARIABLE = "LLAMA_JAX_PROGRESS"  # names the file through which a notebook tells the runner how far a long cell is

EVERY_S = 10.0  # between two lines where nobody sees a bar

Progress = Callable[[str, int, int], None]


def announce(what: str, done: int, total: int) -> None:
    """Report to the runner's file if there is a runner, or to one line under the cell in JupyterLab; otherwise
    nowhere."""
    line = f"{what} ({done}/{total})"
    if path := os.environ.get(VARIABLE):
        Path(path).write_text(line)
    elif "ipykernel" in sys.modules:
        from IPython.display import clear_output

        clear_output(wait=True)
        print(line)


@contextlib.contextmanager
def bar(shown: bool = True) -> Iterator[Progress]:
    """A bar on standard error that says what is being measured, and how long the rest may take."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    what, count = TextColumn("{task.description}"), TextColumn("{task.completed}/{task.total}")
    columns = what, BarColumn(), count, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    with Bar(*columns, console=Console(stderr=True), transient=True, disable=not shown) as progress:
        task = progress.add_task("loading", total=1)
        yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total)


def lines(tell: Callable[[str], None], every_s: float = EVERY_S) -> Progress:
    """Plain lines, one at once and then one in so many seconds at most: what is being measured, how far it is, and
    about how long the rest takes by the pace so far."""
    began, due = time.monotonic(), 0.0

    def say(what: str, done: int, total: int) -> None:
        nonlocal due
        spent = time.monotonic() - began
        if spent < due:
            return
        due = spent + every_s
        left = f", about {spent * (total - done) / done:.0f} s left" if done else ""
        tell(f"{what} ({done} of {total} done after {spent:.0f} s{left})")

    return say
