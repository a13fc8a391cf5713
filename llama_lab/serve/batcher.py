"""Continuous batching: one thread gives each slot its turn, and requests join and leave between two turns.

A round is one step of every slot that answers and one chunk of one prompt, so that a long prompt stalls nobody for
longer than a chunk takes. A cancelled request frees its slot at the next round. A request that fails ends alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from llama_jax.grammars import Walker
from llama_jax.sampling import Constrained, Mask, TracedSampler
from llama_lab.serve.metrics import Metrics
from llama_lab.serve.stepper import Made, Score, State, Stepper, cut

LOG = logging.getLogger(__name__)


class FullError(Exception):
    """As many requests wait as may."""


@dataclass(frozen=True)
class News:
    """What a request is sent. tokens: new ones. reason: "stop" or "length" with the last of them, "error" where it
    failed. The times are the clock's at the first call of its prompt, its first token and its last, in ns. scores: of
    each token, where they were asked for. cached: tokens of the prompt that the slot still had. prompt: scores of the
    prompt's tokens but the first, in news of their own, before all others."""

    tokens: list[int]
    reason: str = ""
    began_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0
    scores: Sequence[Score] = ()
    cached: int = 0
    prompt: Sequence[Score] = ()


@dataclass(eq=False)
class Job:
    """A request: token ids in, at most `new_tokens` out through `deliver`, which is called in the batcher's thread.
    scores_prompt: whether scores of two or more tokens of the prompt come first. ended: why nobody wants more of it, ""
    while somebody does. withdraw: takes it out of the queue that it is in. walker: says which token may be the next,
    where not all may."""

    ids: Sequence[int]
    new_tokens: int
    sampler: TracedSampler
    seed: int
    stop: frozenset[int]
    deliver: Callable[[News], None]
    scores_prompt: bool = False
    asked_ns: int = field(default_factory=time.perf_counter_ns)
    ended: str = ""
    withdraw: Callable[[Job], None] | None = None
    walker: Walker | None = None

    def __post_init__(self):
        self.next: TracedSampler | Constrained = self.sampler
        self.follow([])

    def follow(self, tokens: Sequence[int]) -> None:
        """Have `next` draw from what may come after these tokens."""
        if self.walker:
            for token in tokens:
                self.walker.advance(token)
            self.next = Constrained(self.sampler, Mask(self.walker.mask()[None]))

    def cancel(self, reason: str = "cancelled") -> None:
        """Nobody wants more of it: "cancelled", or "stop" where what it said is whole. From any thread."""
        if not self.ended:
            self.ended = reason
            if self.withdraw:
                self.withdraw(self)


@dataclass
class Slot:
    """A place for one request at a time. held: the tokens whose keys its cache has. scored: while its prompt is scored,
    which comes before it is answered, the scores so far."""

    number: int = 0
    job: Job | None = None
    state: State | None = None
    held: list[int] = field(default_factory=list)
    waiting: deque = field(default_factory=deque)  # pieces of the prompt, in pairs while it is scored
    scored: list[Score] | None = None
    pad: int = 0  # places of the cache before the first token
    read: int = 0  # tokens of the prompt that are cached
    made: int = 0
    cached: int = 0
    began_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0

    @property
    def answers(self) -> bool:
        return self.job is not None and not self.waiting

    def news(self, tokens: list[int], reason: str = "", scores: Sequence[Score] = ()) -> News:
        return News(tokens, reason, self.began_ns, self.first_ns, self.last_ns, scores[: len(tokens)], self.cached)


class Batcher(threading.Thread):
    """Slots and the queue before them. queue: requests that may wait."""

    def __init__(self, stepper: Stepper, slots: int, queue: int, metrics: Metrics):
        super().__init__(name="batcher", daemon=True)
        self.stepper, self.queue, self.metrics = stepper, queue, metrics
        self.slots = [Slot(number) for number in range(slots)]
        self.most = slots + queue  # jobs at a time
        self.jobs: deque[Job] = deque()
        self.changed = threading.Condition()
        self.closed = False

    def submit(self, job: Job) -> None:
        """Raises FullError where too many wait already."""
        with self.changed:
            free = sum(slot.job is None for slot in self.slots)
            if self.closed or len(self.jobs) >= self.queue + free:
                raise FullError
            job.withdraw = self.withdraw
            self.jobs.append(job)
            self.metrics.waiting.set(len(self.jobs))
            self.changed.notify()

    def withdraw(self, job: Job) -> None:
        """Take a job out of the queue, where it still waits."""
        with self.changed:
            if job in self.jobs:
                self.jobs.remove(job)
                self.metrics.requests.labels(job.ended).inc()
                self.metrics.waiting.set(len(self.jobs))

    def close(self) -> None:
        """End the thread: what still runs is cancelled."""
        with self.changed:
            self.closed = True
            self.changed.notify()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        while self.admitted():
            self.round()
        for slot in self.slots:
            if slot.job:
                self.leave(slot, "error")
        for job in self.jobs:
            self.metrics.requests.labels("error").inc()
            job.deliver(News([], "error"))

    def admitted(self) -> bool:
        """Wait until there is something to do and give free slots away; False once closed."""
        with self.changed:
            self.count()
            while not self.closed and not self.jobs and not any(slot.job for slot in self.slots):
                self.changed.wait()
            if self.closed:
                return False
            while self.jobs and any(slot.job is None for slot in self.slots):
                self.enter(self.jobs.popleft())
            self.count()
            return True

    def count(self) -> None:
        """Tell how many wait and how many are answered; also before the thread falls asleep."""
        self.metrics.waiting.set(len(self.jobs))
        self.metrics.running.set(sum(slot.job is not None for slot in self.slots))

    def enter(self, job: Job) -> None:
        """Give a job the free slot whose cache has most of its prompt."""
        free = (slot for slot in self.slots if slot.job is None)
        slot = max(free, key=lambda s: (self.stepper.kept(s.held, s.pad, job.ids), -len(s.held)))
        slot.job, slot.made, slot.began_ns, slot.first_ns, slot.scored = job, 0, 0, 0, None
        if job.scores_prompt:
            slot.waiting = deque(self.stepper.scored_pieces(job.ids))
            slot.held, slot.state, slot.scored, slot.cached = [], None, [], 0
            slot.pad = max(0, -slot.waiting[0][0].at)
        else:
            slot.cached = self.prepare(slot)
        self.metrics.prompt_tokens.inc(len(job.ids))
        self.metrics.reused_tokens.inc(slot.cached)

    def prepare(self, slot: Slot) -> int:
        """Line up what is to run of the prompt before its answer. Returns how many of its tokens the slot has."""
        ids = slot.job.ids
        known = self.stepper.kept(slot.held, slot.pad, ids) if self.stepper.holds(slot.state) else 0
        if known:
            slot.held, slot.waiting = list(ids[:known]), deque(cut(ids, known, self.stepper.sizes))
        else:
            slot.held, slot.waiting, slot.state = [], deque(self.stepper.pieces(ids)), None
            slot.pad = max(0, -slot.waiting[0].at)
        return known

    def round(self) -> None:
        """One step of each slot that answers, started before any is awaited, and one piece of one prompt."""
        for slot in self.slots:
            if slot.job and slot.job.ended:
                self.leave(slot, slot.job.ended)
        started, answering = [], [slot for slot in self.slots if slot.answers]
        groups = [answering] if self.stepper.together else [[slot] for slot in answering]
        for group in filter(None, groups):
            started += self.guarded(group, self.step)
        if reading := [slot for slot in self.slots if slot.job and slot.waiting]:
            started += self.guarded([min(reading, key=lambda slot: slot.job.asked_ns)], self.read)
        for slot, tokens in started:
            self.guarded([slot], self.hear, tokens)

    def guarded(self, slots: Sequence[Slot], call: Callable, *arguments):
        """What a call for some slots returns; one that fails ends their requests and no other, and returns nothing."""
        try:
            return call(slots, *arguments)
        except Exception:
            LOG.exception("a request failed")
            for slot in slots:
                slot.first_ns = 0  # what its cache holds is nobody's
                self.leave(slot, "error")
            return []

    def step(self, slots: Sequence[Slot]) -> list[tuple]:
        """(slot, what its step makes) of slots that step together."""
        made = self.stepper.step([slot.state for slot in slots], [slot.job.next for slot in slots])
        for slot, (_, state) in zip(slots, made, strict=True):
            slot.state = state
        return [(slot, tokens) for slot, (tokens, _) in zip(slots, made, strict=True)]

    def read(self, slots: Sequence[Slot]) -> list[tuple]:
        """(a slot, the token after the next piece of its prompt, which is its answer's first after the last one)."""
        (slot,) = slots
        job, piece = slot.job, slot.waiting.popleft()
        if slot.scored is not None:
            those, following = (each.ids for each in piece)
            made, slot.state = self.stepper.score(slot.number, slot.state, those, following, slot.pad)
            return [(slot, made)]
        first, last = not slot.began_ns, not slot.waiting
        if first:
            slot.began_ns = time.perf_counter_ns()
        if first and slot.state is None:
            slot.state = self.stepper.begin(slot.number, piece.ids, slot.pad, job.seed, job.next, last)
        else:
            if first or piece.at < slot.read:  # another request's, or read again
                slot.state = self.stepper.resume(slot.state, job.ids[: piece.at], job.seed, job.sampler)
            slot.state = self.stepper.extend(slot.state, piece.ids, job.next, last)
        slot.read = piece.at + piece.ids.shape[1]
        return [(slot, slot.state.made)]

    def hear(self, slots: Sequence[Slot], made: Made) -> None:
        """Wait for what a call made for a slot and hand it on, up to the token that ends the answer."""
        (slot,) = slots
        if slot.scored is not None:
            return self.hear_scores(slot, made)
        tokens = self.stepper.fetch(made)
        if slot.waiting:  # within its prompt
            return
        job, now = slot.job, time.perf_counter_ns()
        scores = self.stepper.scores(made) if job.sampler.scored else ()
        if not slot.first_ns:
            slot.first_ns, slot.held = now, list(job.ids)
            self.metrics.first_token.observe((now - job.asked_ns) / 1e9)
        else:
            self.metrics.inter_token.observe((now - slot.last_ns) / 1e9 / len(tokens))
        slot.last_ns = now
        tokens = tokens[: job.new_tokens - slot.made]
        ends = next((i for i, token in enumerate(tokens) if token in job.stop), None)
        tokens = tokens if ends is None else tokens[: ends + 1]
        slot.made += len(tokens)
        self.metrics.tokens.inc(len(tokens))
        if ends is not None or slot.made >= job.new_tokens:
            self.leave(slot, "stop" if ends is not None else "length", tokens, scores)
        else:
            slot.held += tokens
            job.follow(tokens)
            job.deliver(slot.news(tokens, scores=scores))

    def hear_scores(self, slot: Slot, made: Made) -> None:
        """Wait for the scores of a piece of prompt; after the last, hand them on and answer."""
        job = slot.job
        slot.scored += self.stepper.scores(made)
        if slot.waiting:
            return
        job.deliver(News([], prompt=slot.scored[-len(job.ids) : -1]))
        slot.scored, slot.held = None, list(job.ids)
        if job.new_tokens:
            self.prepare(slot)
        else:
            slot.first_ns = time.perf_counter_ns()
            self.leave(slot, "length")

    def leave(self, slot: Slot, reason: str, tokens: Sequence[int] = (), scores: Sequence[Score] = ()) -> None:
        """Free the slot. What it holds stays, for a request that begins alike."""
        job, slot.job = slot.job, None
        slot.waiting.clear()
        if not slot.first_ns:  # ended within its prompt
            slot.state, slot.held = None, []
        elif not tokens and reason != "error":
            slot.held.pop()  # left between two steps: the newest token is heard and not yet cached
        self.metrics.requests.labels(reason).inc()
        job.deliver(slot.news(list(tokens), reason, scores))
