"""A live view of an answer: text as it arrives, the time to its first token, and tokens/s of the steps in which nothing
was compiled. For display only: in a timed region, drawing and decoding text would count."""

from __future__ import annotations

import contextlib
import html
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from llama_jax.plumbing import compilations
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import LARGEST, shown
from llama_jax.tokenizer import BatchTokenizer, Tokenizer

LONGEST = 80  # characters of a prompt that stands above its answer


Before = Sequence[tuple[str, float]]  # what came before a request, such as ("load", 0.8), in seconds


@dataclass(frozen=True)
class View:
    """One moment of an answer. Seconds since the request; `before` came before it.

    pieces: how many pieces arrived, if they are text without ids. compiling: seconds in which this process compiled,
    until the first token and after it; keeping: in which it read or wrote compiled programs. warm: tokens of the steps
    in which neither happened, and the seconds of these steps.
    """

    text: str
    token_ids: tuple[int, ...]
    ttft: float
    seconds: float
    pieces: int = 0
    before: Before = ()
    compiling: tuple[float, float] = (0.0, 0.0)
    keeping: tuple[float, float] = (0.0, 0.0)
    warm: tuple[int, float] = (0, 0.0)

    @property
    def tokens(self) -> int:
        """Number of tokens; in an answer of text, one per piece."""
        return len(self.token_ids) or self.pieces

    @property
    def tokens_per_second(self) -> float | None:
        """Rate of the warm steps after the first token; None if there was no such step."""
        return self.warm[0] / self.warm[1] if self.warm[1] else None

    @property
    def status(self) -> str:
        early, late = (
            [(name, seconds) for name, seconds in (("compile", compiled), ("kept programs", kept)) if seconds]
            for compiled, kept in zip(self.compiling, self.keeping, strict=True)
        )
        parts, first = [*self.before, *early], span(self.ttft + total(self.before))
        if parts:
            first += f" ({told([*parts, ('prompt', self.ttft - total(early))])})"
        line = f"{self.tokens} token{'s' * (self.tokens != 1)} · first after {first}"
        if self.tokens_per_second is not None:
            return f"{line} · then {self.tokens_per_second:.1f} tok/s" + f" (without {told(late)})" * bool(late)
        rest = f" · the rest took {span(self.seconds - self.ttft)}" + f" with {told(late)}" * bool(late)
        return line + rest * (self.seconds > self.ttft)


def total(parts: Before) -> float:
    return sum(seconds for _, seconds in parts)


def told(parts: Before) -> str:
    return ", ".join(f"{name} {span(seconds)}" for name, seconds in parts)


def span(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


class Pace:
    """When an answer's tokens arrived, and when this process was compiling. start: of the request."""

    def __init__(self, start: float | None = None, before: Before = ()):
        self.compiled, self.before = compilations.watch(), before
        self.start = time.perf_counter() if start is None else start
        self.first = self.last = self.start
        self.steps: list[tuple[float, float, int]] = []  # the warm ones: from, to, tokens
        self.came = False

    def arrive(self, tokens: int) -> None:
        """Record this many tokens as arriving now."""
        now = time.perf_counter()
        if self.came:
            self.steps.append((self.last, now, tokens))
        else:
            self.first, self.came = now, True
        self.last = now
        # what was compiled until now in another thread may have begun in an earlier step
        while self.steps and self.compiled.programs.within(*self.steps[-1][:2]):
            self.steps.pop()

    def view(self, text: str, token_ids: tuple[int, ...] = (), pieces: int = 0) -> View:
        """The answer as it is now."""
        edges = (self.start, self.first), (self.first, self.last)
        compiling, keeping = (
            tuple(kind.within(*edge) for edge in edges) for kind in (self.compiled.compiling, self.compiled.keeping)
        )
        warm = sum(tokens for *_, tokens in self.steps), sum(end - begin for begin, end, _ in self.steps)
        times = self.first - self.start, self.last - self.start
        return View(text, token_ids, *times, pieces, self.before, compiling, keeping, warm)


class TokenView:
    """An answer that is drawn whenever it grows.

    tokenizer: needed only for ids. draw: called with each `View`. start: `time.perf_counter()` at the request, if that
    was before this call. before: what happened before the request, to be shown.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | BatchTokenizer | None = None,
        draw: Callable[[View], None] = lambda view: None,
        start: float | None = None,
        before: Before = (),
    ):
        self.tokenizer = tokenizer.text if isinstance(tokenizer, BatchTokenizer) else tokenizer
        self.draw, self.pace = draw, Pace(start, before)
        self.view: View | None = None

    def add_token(self, token: str | object) -> View:
        """The answer with one more token: its text or its id. A block of ids (`ids_of`) is several tokens at once.

        Raises UserError for anything else, for ids without a tokenizer, and for both kinds in one answer.
        """
        so_far = self.view or View("", (), 0.0, 0.0)
        if isinstance(token, str):
            if so_far.token_ids:
                raise UserError(
                    f"{shown(token)} is text, but the tokens before it were ids; yield only one of the two."
                )
            self.pace.arrive(1)
            self.view = self.pace.view(so_far.text + token, pieces=so_far.pieces + 1)
        else:
            ids = ids_of(token)
            if so_far.pieces:
                raise UserError(
                    f"{shown(token)} is not text, but the tokens before it were; yield only one of the two."
                )
            if self.tokenizer is None:
                raise UserError("A view of token ids needs tokenizer=, such as that of the checkpoint.")
            self.pace.arrive(len(ids))
            ids = (*so_far.token_ids, *ids)
            self.view = self.pace.view(self.tokenizer.decode(ids), ids)
        self.draw(self.view)
        return self.view

    @property
    def tps(self) -> float:
        """`View.tokens_per_second`; 0.0 until there is one."""
        return (self.view and self.view.tokens_per_second) or 0.0


def ids_of(token: object) -> list[int]:
    """The ids in a token of a generator: a whole number, or an array of one sequence, [n], [n 1] or [1 n]. Waits
    until they are computed. Raises UserError for anything else."""
    with contextlib.suppress(ValueError, TypeError):  # a list of lists of different lengths, and what is no list
        ids = np.asarray(token)
        one_sequence = ids.dtype.kind in "iu" and ids.size == max(ids.shape, default=1)
        if one_sequence and ids.size and 0 <= ids.min() <= ids.max() <= LARGEST:
            return ids.ravel().tolist()
    raise UserError(f"{shown(token)} is not a token; yield text, a token id, or an array of one sequence's ids.")


def watch(
    tokens: Iterable[str | object], tokenizer: Tokenizer | BatchTokenizer | None = None, start: float | None = None
) -> Iterator[View]:
    """The growing answer, a view for each token or block of tokens that arrives.

    tokens: text, ids or blocks of ids [n 1], as `TokenView.add_token` takes them; such as a one-row `generate.stream`.
    """
    growing = TokenView(tokenizer, start=start)
    for token in tokens:
        yield growing.add_token(token)


@contextlib.contextmanager
def token_view(
    prompt: str | None = None,
    tokenizer: Tokenizer | BatchTokenizer | None = None,
    console: Console | None = None,
    start: float | None = None,
    before: Before = (),
) -> Iterator[TokenView]:
    """A view for code that makes tokens itself: `add_token(text)` shows one more, `tps` is their rate.

        with ll.render.token_view(prompt=question) as view:
            for token in generator(question):
                view.add_token(token)
        view.tps

    It is drawn in Jupyter as HTML, otherwise in the terminal below the prompt; a pipe or file gets only the text, once
    it is complete. tokenizer: for tokens that are ids. Drawing takes time, so `tps` is not a measurement.
    """
    above = f"> {prompt if len(prompt) <= LONGEST else prompt[:LONGEST] + ' …'}" if prompt else ""
    with _screen(above, console) as draw:
        yield TokenView(tokenizer, draw, start, before)


def show(
    tokens: Iterable[str | object],
    tokenizer: Tokenizer | BatchTokenizer | None = None,
    console: Console | None = None,
    start: float | None = None,
    prompt: str | None = None,
    before: Before = (),
) -> View:
    """Show an answer as it is made, as `token_view`; returns the last view. Raises UserError if no token comes."""
    with token_view(prompt, tokenizer, console, start, before) as view:
        for token in tokens:
            view.add_token(token)
    if view.view is None:
        raise UserError("No token came, so there is nothing to show.")
    return view.view


def in_jupyter() -> bool:
    """True inside a notebook kernel (not in a plain IPython terminal)."""
    ipython = sys.modules.get("IPython")  # a kernel has it; anywhere else importing it takes longer than an answer
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


def as_html(view: View, above: str = "") -> str:
    """The view as an HTML fragment; the model's text is escaped."""
    dim = "opacity:.6;font-size:85%"
    parts = (dim, above), ("white-space:pre-wrap;font-family:inherit", view.text), (dim, view.status)
    return "".join(f'<div style="{style}">{html.escape(text)}</div>' for style, text in parts if text)


def _screen(above: str, console: Console | None) -> contextlib.AbstractContextManager[Callable[[View], None]]:
    """The function that draws a view, wherever this process displays things."""
    if console is None and in_jupyter():
        return _jupyter(above)
    console = console or Console()
    return _terminal(above, console) if console.is_terminal else _file(console)


@contextlib.contextmanager
def _jupyter(above: str) -> Iterator[Callable[[View], None]]:
    from IPython.display import HTML, display

    handle = None

    def draw(view: View) -> None:
        nonlocal handle
        fragment = HTML(as_html(view, above))
        if handle is None:
            handle = display(fragment, display_id=True)
        else:
            handle.update(fragment)

    yield draw


@contextlib.contextmanager
def _terminal(above: str, console: Console) -> Iterator[Callable[[View], None]]:
    head = [Text(above, style="dim")] if above else []
    with Live(console=console, refresh_per_second=20, vertical_overflow="visible") as live:
        yield lambda view: live.update(Group(*head, Text(view.text), Text(view.status, style="dim")))


@contextlib.contextmanager
def _file(console: Console) -> Iterator[Callable[[View], None]]:
    """Write the text, unwrapped, to a pipe or a file and nothing else; after an error, the text so far."""
    last = None

    def draw(view: View) -> None:
        nonlocal last
        last = view

    try:
        yield draw
    finally:
        if last:
            console.file.write(f"{last.text}\n")
