"""One call of `extract`: which of its units are still to do, and what it has committed so far."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeVar

import numpy as np

from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import whole
from llama_lab.activations import store
from llama_lab.activations.batches import Unit
from llama_lab.activations.folder import Folder
from llama_lab.activations.moments import Moments
from llama_lab.activations.plan import Plan, Shard, share_of
from llama_lab.activations.program import Compiled, encode
from llama_lab.activations.records import Commit, commits, committed_unit
from llama_lab.activations.sources import Chunk, Source, changed, chunks

T = TypeVar("T")
END = object()
PATIENCE = 0.01  # seconds


class Progress(NamedTuple):
    """How far a run is.

    units, examples, tokens, bytes: what this call has committed, in so many seconds. before: examples of what is asked
    for that were committed before, or by another process since. total: examples asked for, None if that is not
    known. unit: the one just committed or found committed, None in the first call: the folder is claimed, work begins.
    """

    units: int
    examples: int
    tokens: int
    bytes: int
    seconds: float
    before: int
    total: int | None = None
    unit: int | None = None


@dataclass(frozen=True)
class RunReport:
    """The result of a run and its cost.

    units, rows, bytes: of all that was asked for and is committed. written, tokens: units committed by this call, and
    the tokens that the model read for them, padding left out. padding: share of the model's work that went to padding.
    compilations: programs compiled for the run, its extractor's included. seconds: from the start to the last fsync,
    without compiling; tokens_per_second: tokens / seconds.
    complete: whether every unit of the source is committed; not looked for where `units` were named. device_idle: share
    of the traced time in which the device ran nothing.
    """

    out: str
    units: int
    rows: int
    bytes: int
    written: int
    tokens: int
    padding: float
    compilations: int
    seconds: float
    tokens_per_second: float
    complete: bool
    device_idle: float | None = None


def summed(
    out: str, asked: Collection[Commit], reports: Sequence[RunReport], done: Progress, complete: bool
) -> RunReport:
    """One report of several processes. asked: the commits of all that was asked for. reports: of those that ended
    their work, whose padding and compilations are known. done: by all of them, also those that did not."""
    slots = sum(report.tokens / (1 - report.padding) for report in reports if report.tokens)
    return RunReport(
        out=out,
        units=len(asked),
        rows=sum(commit.rows for commit in asked),
        bytes=sum(commit.bytes for commit in asked),
        written=done.units,
        tokens=done.tokens,
        padding=1 - sum(report.tokens for report in reports) / slots if slots else 0.0,
        compilations=sum(report.compilations for report in reports),
        seconds=done.seconds,
        tokens_per_second=done.tokens / done.seconds if done.seconds else 0.0,
        complete=complete,
    )


class Supply:
    """The items of an iterator that may block for ever, each requested when needed, in a thread that is never joined.
    Yields None once if an item does not arrive at once. `close` ends the wait for the next item."""

    def __init__(self, items: Iterable[T]):
        self.items: SimpleQueue = SimpleQueue()
        self.wanted, self.closed = threading.Semaphore(0), False
        threading.Thread(target=self._fetch, args=(iter(items),), name="supply", daemon=True).start()

    def _fetch(self, items: Iterator[T]) -> None:
        item, error = None, None
        while item is not END and error is None:
            self.wanted.acquire()
            if self.closed:
                return
            try:
                item = next(items, END)
            except BaseException as caught:  # whatever it is, the reader must hear of it
                error = caught
            self.items.put((item, error))

    def __iter__(self) -> Iterator[T | None]:
        while not self.closed:
            self.wanted.release()
            try:
                item, error = self.items.get(timeout=PATIENCE)
            except Empty:
                yield None
                item, error = self.items.get()
            if error:
                raise error
            if item is END:
                return
            yield item

    def close(self) -> None:
        self.closed = True
        self.items.put((END, None))
        self.wanted.release()


class Work(NamedTuple):
    """A unit with all its values, ready to be written."""

    unit: Unit
    chunk: Chunk
    values: dict[str, np.ndarray]
    moments: dict[str, Moments]


class Run:
    """left: numbers still to do. passed: of a source that is read in order, numbers to pass over. count: units that the
    source has, as far as is known. `planned` and `write` are called in threads."""

    def __init__(
        self,
        extractor: Compiled,
        folder: Folder,
        source: Source,
        size: int,
        plan: Plan | None,
        progress: Callable[[Progress], None],
    ):
        self.extractor, self.folder, self.source, self.size = extractor, folder, source, size
        self.plan, self.progress, self.lock = plan, progress, threading.RLock()
        self.count = 0 if plan is None else len(plan)
        self.left: Iterable[int] = ()
        self.passed: dict[str, str] = {}  # a number as JSON knows it → sha256 of its examples
        self.shard: Shard | None = None
        self.total: int | None = None
        self.units = self.examples = self.tokens = self.slots = self.bytes = 0
        self.before = self.stored = self.rows = self.stored_bytes = 0

    def take(self, units: Iterable[int] | None, shard: Shard | None) -> None:
        """Find out which requested units are left; `units` are requested one by one, later."""
        self.shard = shard
        if self.plan is None:
            for number, commit in commits(self.folder).items():
                self.passed[str(number)] = commit.source_sha256
                if self.mine(number):
                    self.pass_over(commit)
        elif units is None:
            numbers = share_of(range(self.count), shard)
            self.total = sum(self.plan.part(number).examples for number in numbers)
            self.left = [number for number in numbers if not self.done(number)]
        else:
            self.left = Supply(units)

    def close(self) -> None:
        """Stop waiting for units, because there may never be another."""
        if isinstance(self.left, Supply):
            self.left.close()

    def begin(self) -> None:
        self.start = time.perf_counter()
        self.tell()

    def mine(self, number: int) -> bool:
        return not self.shard or number % self.shard[1] == self.shard[0]

    def done(self, number: int) -> bool:
        """Whether a unit is committed, by whichever process."""
        if commit := committed_unit(self.folder, number):
            self.pass_over(commit)
        return commit is not None

    def pass_over(self, commit: Commit) -> None:
        """Count a unit that was found committed."""
        with self.lock:
            self.before += commit.examples
            self.stored += 1
            self.rows += commit.rows
            self.stored_bytes += commit.bytes

    def chunks(self, look: bool) -> Iterator[Chunk | None]:
        """The examples of the units that are left, None while none is handed out. look: pass over those that another
        process has committed since."""
        if self.plan is None:
            yield from self.in_order()
            return
        for number in self.left:
            if number is None:
                yield None
                continue
            part = self.plan.part(number := whole(number, "A unit", 0))
            if look and self.done(number):
                self.tell(number)
            else:
                yield self.source.chunk(part)

    def in_order(self) -> Iterator[Chunk]:
        """The same if the whole source is read. Raises UserError if the skipped part has changed."""
        for chunk in chunks(self.source, self.size):
            self.count += 1
            if (sha256 := self.passed.get(str(chunk.number))) is not None:
                if sha256 != chunk.sha256:
                    raise UserError(changed(chunk.number, chunk.first, len(chunk.examples)))
            elif self.mine(chunk.number):
                yield chunk

    def planned(self, look: bool) -> Iterator[tuple[Unit, Chunk] | Exception | None]:
        """(unit, its examples) of what is left, None while none is handed out. An error that ends it comes as the last
        item: what came before is not to be lost."""
        ids, plan = encode(self.extractor.checkpoint), self.extractor.plan
        try:
            for chunk in self.chunks(look):
                yield chunk and (plan(chunk.number, chunk.first, [ids(example) for example in chunk.examples]), chunk)
        except Exception as error:
            yield error

    def write(self, work: Work) -> None:
        """Commit a unit. Raises UserError for values that are not finite: they would spoil every mean."""
        unit = work.unit
        for site, moments in work.moments.items():
            if not (np.isfinite(moments.mean).all() and np.isfinite(moments.m2).all()):
                raise UserError(
                    f"{site} has values in unit {unit.number} that {self.extractor.spec.dtype} cannot hold (not"
                    " finite); choose bfloat16 or float32."
                )
        about = dict(first=unit.first, examples=unit.count, tokens=unit.tokens, source_sha256=work.chunk.sha256)
        commit = store.write_unit(self.folder, unit.number, work.values | unit.rows, about, work.moments)
        with self.lock:
            self.units += 1
            self.examples += unit.count
            self.bytes += commit.bytes
            self.tokens += unit.tokens
            self.slots += len(unit.batches) * self.extractor.shape[0] * self.extractor.shape[1]
            self.rows += commit.rows
            self.tell(unit.number)

    def tell(self, unit: int | None = None) -> None:
        with self.lock:
            done = (self.units, self.examples, self.tokens, self.bytes, time.perf_counter() - self.start)
            self.progress(Progress(*done, self.before, self.total, unit))

    def report(self, compilations: int, seconds: float, complete: bool, device_idle: float | None) -> RunReport:
        return RunReport(
            out=self.folder.where,
            units=self.stored + self.units,
            rows=self.rows,
            bytes=self.stored_bytes + self.bytes,
            written=self.units,
            tokens=self.tokens,
            padding=1 - self.tokens / self.slots if self.slots else 0.0,
            compilations=compilations,
            seconds=seconds,
            tokens_per_second=self.tokens / seconds,
            complete=complete,
            device_idle=device_idle,
        )
