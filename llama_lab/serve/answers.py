"""From a request to pieces of text as they come, in the event loop's thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from llama_jax import pipeline
from llama_lab.serve.batcher import Job, News
from llama_lab.serve.stepper import Score


@dataclass(frozen=True)
class Token:
    """A token with its log probabilities, None for a prompt's first. at: characters of the answer before it, below 0
    within the prompt."""

    id: int
    score: Score | None
    at: int


@dataclass(frozen=True)
class Piece:
    """What some tokens add to the text. tokens: those that begin in it, where their log probabilities were asked for,
    without a token that ends the answer. made: tokens of the answer so far; cached: those of the prompt that the slot
    still had. end: how the answer ended, in the last piece."""

    text: str
    tokens: tuple[Token, ...]
    made: int
    cached: int
    end: End | None = None


@dataclass(frozen=True)
class End:
    """How an answer ended: "stop", "length" or "error", with its tokens and times in ns."""

    reason: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    queued_ns: int
    prompt_ns: int
    decode_ns: int


class Stops:
    """Texts that end an answer and are not part of it. What may be the beginning of one is held back."""

    def __init__(self, stops: Sequence[str]):
        self.stops, self.held = [stop for stop in stops if stop], ""

    def feed(self, text: str) -> tuple[str, bool]:
        """(the text that is certain now, whether a stop was met)."""
        self.held += text
        places = [at for stop in self.stops if (at := self.held.find(stop)) >= 0]
        if places:
            released, self.held = self.held[: min(places)], ""
            return released, True
        keep = max((self.overlap(stop) for stop in self.stops), default=0)
        released = self.held[: len(self.held) - keep]
        self.held = self.held[len(released) :]
        return released, False

    def overlap(self, stop: str) -> int:
        """Characters at the end of what is held with which a stop begins."""
        return next((n for n in range(min(len(stop) - 1, len(self.held)), 0, -1) if self.held.endswith(stop[:n])), 0)

    def rest(self) -> str:
        released, self.held = self.held, ""
        return released


class Answer:
    """One request on its way: submitted when made, cancelled when its reader leaves. echo: the prompt's text, if it is
    to come first, with log probabilities where those are asked for."""

    def __init__(
        self, tokenizer, submit: Callable[[Job], None], stops: Sequence[str] = (), echo: str | None = None, **request
    ):
        loop = asyncio.get_running_loop()
        self.news: asyncio.Queue[News] = asyncio.Queue()
        self.tokenizer, self.stops, self.echo = tokenizer, Stops(stops), echo

        def deliver(news: News) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(self.news.put_nowait, news)

        self.job = Job(deliver=deliver, **request)
        submit(self.job)

    def echoed(self, scores: Sequence[Score] = ()) -> Piece:
        """The prompt. scores: of its tokens but the first."""
        read, at, tokens = pipeline.reader(self.tokenizer), -len(self.echo), []
        told = zip(self.job.ids, [None, *scores], strict=True) if self.job.sampler.scored else ()
        for token, score in told:
            tokens.append(Token(token, score, at))
            at += len(read([token]))
        return Piece(self.echo, tuple(tokens), 0, 0)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Pieces of text, the last with the end. Leaving early frees the slot."""
        read, ids = pipeline.reader(self.tokenizer), []
        text_so_far, sent = "", 0  # the whole text, and how many characters of it are out
        waiting: deque[Token] = deque()
        try:
            if self.echo is not None and not self.job.scores_prompt:
                yield self.echoed()
            while True:
                news, part, met = await self.news.get(), "", False
                if news.prompt:
                    yield self.echoed(news.prompt)
                    continue
                for token, score in zip_longest(news.tokens, news.scores):
                    # where the prompt's tokens are told, each of the answer is: lm-eval leaves out the last one
                    if score and (self.echo is not None or token not in self.job.stop):
                        waiting.append(Token(token, score, len(text_so_far)))
                    ids.append(token)
                    text = read([token])
                    text_so_far += text
                    certain, met = self.stops.feed(text)
                    part += certain
                    if met:  # what a call made beyond it is not counted
                        break
                reason = "stop" if met else news.reason
                if reason and not met:
                    rest = self.tokenizer.decode(ids)[len(text_so_far) :] if reason != "error" else ""
                    certain, met = self.stops.feed(rest)  # what there is of a character that is incomplete
                    part += certain if met else certain + self.stops.rest()
                sent += len(part)
                tokens = before(waiting, None if reason and not met else sent)
                if reason:
                    self.job.cancel("stop")
                    job, began, first = self.job, news.began_ns, news.first_ns
                    times = began - job.asked_ns, first - began, news.last_ns - first
                    end = End("stop" if met else reason, tuple(ids), len(job.ids), *times)
                    yield Piece(part, tokens, len(ids), news.cached, end)
                    return
                if part:
                    yield Piece(part, tokens, len(ids), news.cached)
        finally:
            self.job.cancel()


def before(tokens: deque[Token], end: int | None) -> tuple[Token, ...]:
    """Take out the tokens that begin before so many characters; all of them without an end."""
    taken = []
    while tokens and (end is None or tokens[0].at < end):
        taken.append(tokens.popleft())
    return tuple(taken)


async def unless_gone(receive: Callable, work: Coroutine):
    """What a coroutine returns; None, and the coroutine cancelled, where the client has left. The body must have been
    read."""
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for future in (task, watch):
            future.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def gone(receive: Callable) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
