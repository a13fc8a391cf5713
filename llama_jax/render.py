"""A live view of an answer: text as it comes, TTFT and tokens/s. For people; never inside a timed region."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from llama_jax.tokenizer import Tokenizer


@dataclass(frozen=True)
class View:
    """One moment of an answer. Seconds since the request."""

    text: str
    token_ids: tuple[int, ...]
    ttft: float
    seconds: float

    @property
    def tokens_per_second(self) -> float | None:
        """(n - 1) / (time since the first token); None for a first token alone."""
        return (len(self.token_ids) - 1) / (self.seconds - self.ttft) if self.seconds > self.ttft else None

    @property
    def status(self) -> str:
        rate = "" if self.tokens_per_second is None else f" · {self.tokens_per_second:.1f} tok/s"
        return f"{len(self.token_ids)} tokens · TTFT {self.ttft * 1e3:.0f} ms{rate}"


def watch(blocks: Iterable[np.ndarray], tokenizer: Tokenizer, start: float | None = None) -> Iterator[View]:
    """The growing answer of a one-row stream, a view for each block that arrives.

    start: `time.perf_counter()` at the request, when that was before this call.
    """
    start, ttft, ids = start or time.perf_counter(), None, []
    for block in blocks:
        now = time.perf_counter() - start
        ttft = now if ttft is None else ttft
        ids += [int(i) for i in block[:, 0]]
        yield View(tokenizer.decode(ids), tuple(ids), ttft, now)


def show(
    blocks: Iterable[np.ndarray], tokenizer: Tokenizer, console: Console | None = None, start: float | None = None
) -> View:
    """Show an answer as it is made, in Jupyter as HTML, else in the terminal; returns the last view."""
    views = watch(blocks, tokenizer, start)
    return _jupyter(views) if console is None and in_jupyter() else _terminal(views, console)


def in_jupyter() -> bool:
    """True inside a notebook kernel (not in a plain IPython terminal)."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None


def as_html(view: View) -> str:
    """The view as an HTML fragment; the model's text is escaped."""
    parts = ("white-space:pre-wrap;font-family:inherit", view.text), ("opacity:.6;font-size:85%", view.status)
    return "".join(f'<div style="{style}">{html.escape(text)}</div>' for style, text in parts)


def _jupyter(views: Iterator[View]) -> View:
    from IPython.display import HTML, display

    handle, view = None, None
    for view in views:
        if handle is None:
            handle = display(HTML(as_html(view)), display_id=True)
        else:
            handle.update(HTML(as_html(view)))
    return view


def _terminal(views: Iterator[View], console: Console | None) -> View:
    console, view = console or Console(), None
    if not console.is_terminal:  # a pipe or a file gets the text as it is, not wrapped, and nothing else
        *_, view = views
        console.file.write(f"{view.text}\n")
        return view
    with Live(console=console, refresh_per_second=20, vertical_overflow="visible") as live:
        for view in views:
            live.update(Group(Text(view.text), Text(view.status, style="dim")))
    return view
