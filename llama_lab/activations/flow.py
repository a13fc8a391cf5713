"""The middle of the pipeline: planned units go in, batches run with a bounded number in flight, and full units come out
to be written."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import psutil

from llama_jax.plumbing.errors import UserError
from llama_lab.activations.batches import Batch, Made, Unit
from llama_lab.activations.moments import Moments, joined
from llama_lab.activations.program import Compiled, Values
from llama_lab.activations.sources import Chunk
from llama_lab.activations.trace import Trace

POOLED = ("pattern", "logits")  # sites whose features are too many to have moments of their own


class Work(NamedTuple):
    """A unit with all its values, ready to be written."""

    unit: Unit
    chunk: Chunk
    values: dict[str, np.ndarray]
    moments: dict[str, Moments]


def to_the_end(planned: Iterator[tuple[Unit, Chunk]]) -> Iterator[tuple[Unit, Chunk] | Exception]:
    """What an iterator gives, and at the end its error, if any: what came before an error is not to be lost."""
    try:
        yield from planned
    except Exception as error:
        yield error


def gathered(
    extractor: Compiled, planned: Iterable[tuple[Unit, Chunk] | Exception | None], depth: int, tracing: Trace
) -> Iterator[Work]:
    """Run every batch, `depth` of them in flight, and hand each unit over as soon as its last batch has arrived; where
    nothing is planned yet (None), all that are in flight.

    Raises the error that ended the planning once everything planned before it has been handed over.
    """
    waiting: deque[tuple[Work, Batch | Made, tuple[Values, dict], bool]] = deque()
    numbers, error = itertools.count(), None

    def arrive() -> Iterator[Work]:
        work, batch, (values, moments), last = waiting.popleft()
        for site, value in values.items():
            work.values[site][batch.to] = extractor.kept(batch, value)
        work.moments.update(
            joined(work.moments, {site: summed(site, len(batch.to), *both) for site, both in moments.items()})
        )
        if last:
            yield work

    for item in planned:
        if isinstance(item, Exception):
            error = item
            break
        if item is None:
            while waiting:
                yield from arrive()
            continue
        unit, chunk = item
        work = Work(unit, chunk, empty(extractor, unit), {})
        for batch in unit.batches:
            with tracing.batch(next(numbers)):
                waiting.append((work, batch, extractor.dispatch(batch), batch is unit.batches[-1]))
            while len(waiting) > depth:
                yield from arrive()
        if not unit.batches:
            yield work
    while waiting:
        yield from arrive()
    if error:
        raise error


def fits(size: int) -> bool:
    """Whether so many bytes are free on the host; numpy would be given them even where they are not."""
    return size <= psutil.virtual_memory().available


def check_room(extractor: Compiled, depth: int) -> None:
    """Raises UserError where the values of the batches in flight, and what one of them takes on its way through the
    model where that is computed on the host, would not fit."""
    needed = (depth + 1) * extractor.capacity * extractor.row_bytes
    if jax.default_backend() == "cpu":
        needed += getattr(extractor.executable.memory_analysis(), "temp_size_in_bytes", 0)
    if not fits(needed):
        b, t = extractor.shape
        raise UserError(
            f"{depth + 1} batches of {b} x {t} in flight take {needed:,} bytes, more than are free; make them smaller"
            " (--batch, --length), or have fewer (--depth)."
        )


def empty(extractor: Compiled, unit: Unit) -> dict[str, np.ndarray]:
    """Room for a unit's values. Raises UserError where there is none."""
    try:
        if not fits(unit.size * extractor.row_bytes):
            raise MemoryError
        return {
            site: np.empty((unit.size, *shape), jnp.dtype(extractor.spec.dtype))
            for site, shape in extractor.row_shapes.items()
        }
    except MemoryError:
        raise UserError(
            f"Not enough memory for the {unit.size:,} rows of unit {unit.number}; make units smaller (--unit)."
        ) from None


def summed(site: str, count: int, mean: jax.Array, m2: jax.Array) -> Moments:
    """A batch's moments in float64; over all features together where these are too many to be kept apart."""
    mean, m2 = np.asarray(mean, np.float64), np.asarray(m2, np.float64)
    if site.partition(":")[0] not in POOLED:
        return Moments(count, mean, m2)
    middle = mean.mean() if mean.size else np.float64(0)
    return Moments(count * mean.size, middle, m2.sum() + count * np.sum((mean - middle) ** 2))


class Writers:
    """Threads that write units, as many waiting as writing. An error in one is raised by the next `put`, or at the
    end."""

    def __init__(self, write: Callable[[Work], None], threads: int):
        self.write = write
        self.pool = ThreadPoolExecutor(threads, "writer") if threads else None
        self.room, self.running = threading.Semaphore(2 * threads), []

    def put(self, work: Work) -> None:
        if self.pool is None:
            return self.write(work)
        self.room.acquire()
        self.running = [future for future in self.running if not ended(future)]
        future = self.pool.submit(self.write, work)
        future.add_done_callback(lambda _: self.room.release())
        self.running.append(future)

    def __enter__(self) -> Writers:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        if self.pool is None:
            return
        self.pool.shutdown(wait=True, cancel_futures=isinstance(error, KeyboardInterrupt))
        if error is None:
            for future in self.running:
                future.result()


def ended(future: Future) -> bool:
    """Whether a write is over; raises its error."""
    return future.done() and future.result() is None
