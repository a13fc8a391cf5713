"""The pipeline: read and plan → run → copy → write, each stage ahead of the next by a bounded amount, and every unit
committed.

A thread reads the source, tokenises and packs; the caller's thread keeps up to `depth` batches in flight on the device
and gathers their values into units; writer threads put each unit on the disk. Whatever fails in a thread is raised to
the caller, and what is committed by then stays valid: the same call goes on from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import psutil
from pydantic import Field

from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.threads import ahead
from llama_lab.activations import sharding, store
from llama_lab.activations.batches import Unit
from llama_lab.activations.folder import open_folder
from llama_lab.activations.moments import Moments, joined
from llama_lab.activations.plan import UNIT, Shard, begin, completed, share_of
from llama_lab.activations.program import Compiled
from llama_lab.activations.run import Progress, Run, RunReport, Work
from llama_lab.activations.sources import Chunk, Source, open_source
from llama_lab.activations.spec import Whole
from llama_lab.activations.trace import Trace, idle_share
from llama_lab.bench.guard import Guard

FORMAT = 1  # the store's version
AHEAD = 2  # planned units that wait for the device
POOLED = ("pattern", "logits")  # sites whose features are too many to have moments of their own


class Pace(boundary.Declared, extra="forbid"):
    """How a run is executed; only `unit` affects the store.

    depth: batches in flight while the next is prepared, 0 to wait for each. writers: threads that write, 0 to write in
    between. unit: examples that are committed together. resume: go on with the run that the folder holds.
    """

    depth: Annotated[Whole, Field(ge=0, le=1 << 16)] = 2
    writers: Annotated[Whole, Field(ge=0, le=256)] = 2
    unit: Annotated[Whole, Field(ge=1, lt=1 << 31)] = UNIT
    resume: bool = True


def extract(
    extractor: Compiled,
    source: Source | str | Path | Iterable,
    out: str | Path,
    *,
    units: Iterable[int] | None = None,
    shard: Shard | None = None,
    progress: Callable[[Progress], None] = lambda done: None,
    trace: str | Path | None = None,
    **pace,
) -> RunReport:
    """Write the activations of every example of a source into the folder `out`; resumes where earlier runs stopped.

    Any number of processes may do so at once, in one folder, for all units or for some. Committed units are left alone,
    and two processes that do the same unit write the same bytes.

    source: see `sources.open_source`. units: numbers of those to do, taken one by one when there is room, so that an
    engine may hand them out as it goes; then `plan.finish` completes the store. shard: (index, count), the units with
    number % count == index; by default JAX's own process index and count. Over a mesh all processes run all units, and
    each writes those of its shard. trace: a file for a Perfetto trace of the first batches, from which the device's
    idle share is computed (`activations.trace`). pace: depth, writers, unit and resume, see `Pace`.
    Raises UserError, one line each, for numbers out of range; a folder that holds another run (naming what differs) or,
    without `resume`, any; a source that cannot be read or has changed; a disk that is full or not writable; too little
    memory; values that the dtype cannot hold.
    """
    asked = boundary.read(Pace, pace, "What is asked of extract")
    share_of(range(0), shard)
    check_room(extractor, asked.depth)
    source = source if isinstance(source, Source) else open_source(source)
    if units is not None and source.contents is None:
        source.parts(asked.unit)  # which says why not
    together = extractor.mesh is not None
    if shard is None and units is None and not together:
        shard = jax.process_index(), jax.process_count()
    folder = open_folder(out)
    if units is None:
        folder.tidy()
    with folder.writing():
        fresh = not asked.resume and (not together or jax.process_index() == 0)  # of many, one may be asked to begin it
        plan = begin(folder, source, asked.unit, partial(fingerprint, extractor, unit=asked.unit), resume=not fresh)
        run = Run(extractor, folder, source, asked.unit, plan, progress)
        run.take(units, shard)
        if together:
            run.left, run.passed = sharding.agreed((run.left, run.passed))
        with Guard() as guard, in_plain_words(extractor):
            run.begin()
            written(run, asked, trace)
            complete = units is None and completed(folder, run.count)
            seconds = time.perf_counter() - run.start
    if units is None:
        folder.tidy()
    idle = idle_share(trace) if trace and run.slots else None
    return run.report(extractor.compilations + guard.compilations, seconds, complete, idle)


def written(run: Run, asked: Pace, trace: str | Path | None) -> None:
    """Run the stages concurrently until the rest of a run is committed."""
    extractor, together = run.extractor, run.extractor.mesh is not None
    planned = ahead(run.planned(look=not together), AHEAD, "planner")
    with (
        Trace(trace) as tracing,
        Writers(run.write, asked.writers) as pool,
        contextlib.closing(planned),
        contextlib.closing(run),
    ):
        for work in gathered(extractor, planned, asked.depth, tracing):
            if not together or work.unit.number % jax.process_count() == jax.process_index():
                pool.put(work)


def gathered(
    extractor: Compiled, planned: Iterable[tuple[Unit, Chunk] | Exception | None], depth: int, tracing: Trace
) -> Iterator[Work]:
    """Run every batch, `depth` of them in flight, and hand each unit over as soon as its last batch has arrived; where
    nothing is planned yet (None), all that are in flight.

    Raises the error that ended the planning once everything planned before it has been handed over.
    """
    waiting: deque = deque()  # (work, batch, what was dispatched, whether it is the unit's last)
    numbers, error = itertools.count(), None

    def arrive() -> Iterator[Work]:
        work, batch, (values, moments), last = waiting.popleft()
        for site, value in values.items():
            work.values[site][batch.to] = extractor.kept(batch, value)
        summed = {site: pooled(site, len(batch.to), *both) for site, both in moments.items()}
        work.moments.update(joined(work.moments, summed))
        if last:
            yield work

    for item in planned:
        if isinstance(item, Exception):
            error = item
            break
        while waiting and item is None:
            yield from arrive()
        if item is None:
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


def pooled(site: str, count: int, mean: jax.Array, m2: jax.Array) -> Moments:
    """A batch's moments in float64; over all features together where these are too many to be kept apart."""
    mean, m2 = np.asarray(mean, np.float64), np.asarray(m2, np.float64)
    if site.partition(":")[0] not in POOLED:
        return Moments(count, mean, m2)
    middle = mean.mean() if mean.size else np.float64(0)
    return Moments(count * mean.size, middle, m2.sum() + count * np.sum((mean - middle) ** 2))


class Writers:
    """Threads that write units, as many waiting as writing. The next `put`, or the end, raises an error of one."""

    def __init__(self, write: Callable[[Work], None], threads: int):
        self.write = write
        self.pool = ThreadPoolExecutor(threads, "writer") if threads else None
        self.room, self.running = threading.Semaphore(2 * threads), []

    def put(self, work: Work) -> None:
        if self.pool is None:
            return self.write(work)
        self.room.acquire()
        ended = [future for future in self.running if future.done()]
        for future in ended:
            future.result()  # raises its error
        self.running = [future for future in self.running if future not in ended]
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


def fingerprint(extractor: Compiled, source: dict, unit: int) -> dict:
    """Everything that decides the store's bytes, as JSON values: a run resumes only if all of it matches."""
    checkpoint, device = extractor.checkpoint, jax.devices()[0]
    tokenizer = checkpoint.tokenizer and hashlib.sha256(checkpoint.tokenizer.definition.encode()).hexdigest()
    packages = {name: importlib.metadata.version(name) for name in ("llama-jax", "jax", "jaxlib", "tokenizers")}
    making = {"generate": extractor.new_tokens} if extractor.new_tokens else {}
    return making | {
        "format": FORMAT,
        "model": {
            "name": Path(checkpoint.name).name,
            "weights_hash": checkpoint.weights_hash,
            "dtype": checkpoint.dtype,
            "config": checkpoint.config.shape(),
        },
        "tokenizer": tokenizer,
        "spec": store.describe(extractor.spec, extractor.row_shapes),
        "source": source,
        "unit": unit,
        "batch": list(extractor.shape),
        "pack": extractor.pack,
        "mesh": dict(extractor.mesh.shape) if extractor.mesh is not None else None,
        "versions": packages,
        "device": f"{device.platform} {device.device_kind}",
    }


@contextlib.contextmanager
def in_plain_words(extractor: Compiled) -> Iterator[None]:
    """Raises UserError if a device or the host is out of memory."""
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
            b, t = extractor.shape
            raise UserError(
                f"Out of memory at a batch of {b} x {t}; make it smaller (--batch, --length) or ask for fewer sites."
            ) from error
        raise


def fits(size: int) -> bool:
    """Whether this many bytes are free on the host; NumPy would get them even if they are not."""
    return size <= psutil.virtual_memory().available


def check_room(extractor: Compiled, depth: int) -> None:
    """Raises UserError if the values of the batches in flight would not fit, including the working memory of one batch
    if the host computes it."""
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
    try:
        if not fits(unit.size * extractor.row_bytes):
            raise MemoryError
        return extractor.room(unit.size)
    except MemoryError:
        raise UserError(f"No room for {unit.size:,} rows of unit {unit.number}; make units smaller (--unit).") from None
