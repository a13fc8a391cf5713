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
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import jax
import numpy as np
from pydantic import Field, model_validator

from llama_jax import boundary
from llama_jax.activations import store, workers
from llama_jax.activations.batches import Unit
from llama_jax.activations.flow import Work, Writers, check_room, gathered, to_the_end
from llama_jax.activations.folder import Folder
from llama_jax.activations.folders import open_folder
from llama_jax.activations.generation import Generator
from llama_jax.activations.program import Extractor, encode
from llama_jax.activations.sources import Chunk, Source, open_source, units
from llama_jax.activations.spec import Whole
from llama_jax.activations.trace import Trace, idle_share
from llama_jax.bench.guard import Guard
from llama_jax.errors import UserError
from llama_jax.threads import ahead

FORMAT = 1  # the store's version
UNIT = 256  # examples
AHEAD = 2  # planned units that wait for the device


class Request(boundary.Declared):
    """What `extract` is asked for, beside extractor, source and folder."""

    depth: Annotated[Whole, Field(ge=0, le=1 << 16)]
    writers: Annotated[Whole, Field(ge=0, le=256)]
    unit: Annotated[Whole, Field(ge=1, lt=1 << 31)]
    resume: bool
    share: Annotated[tuple[Whole, Whole], Field(strict=False)] | None

    @model_validator(mode="after")
    def within(self) -> Request:
        if self.share and not 0 <= self.share[0] < self.share[1]:
            raise ValueError("share is (index, count): index from 0 on, below count")
        return self


class Progress(NamedTuple):
    """How far a run is: what this process has committed in it and since when, and how many examples were committed
    before."""

    units: int
    examples: int
    tokens: int
    bytes: int
    seconds: float
    before: int


@dataclass(frozen=True)
class RunReport:
    """What a run left and what it took.

    units, rows, bytes: of the whole store. written, tokens: units committed by this call, and the tokens that the model
    read for them, padding left out. padding: share of the model's work that went to padding. compilations: programs
    compiled for the run, its extractor's included. seconds: from the start to the last fsync, without compiling;
    tokens_per_second: tokens / seconds.
    complete: whether every unit of the source is committed. device_idle: share of the traced time in which the device
    ran nothing.
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


def extract(
    extractor: Extractor,
    source: Source | str | Path | Iterable,
    out: str | Path,
    depth: int = 2,
    writers: int = 2,
    resume: bool = True,
    *,
    unit: int = UNIT,
    share: tuple[int, int] | None = None,
    progress: Callable[[Progress], None] = lambda done: None,
    trace: str | Path | None = None,
) -> RunReport:
    """Write the activations of every example of a source into the folder `out`; goes on where an earlier run stopped.

    source: see `sources.open_source`. depth: batches in flight while the next is prepared, 0 to wait for each. writers:
    threads that write, 0 to write in between. unit: examples that are committed together. share: (index, count) of this
    process, which runs the units with number % count == index, over a mesh runs all and writes those; JAX's own process
    index and count by default.
    trace: a file for a Perfetto trace of the first batches, from which the device's idle share is computed
    (`activations.trace`).
    Raises UserError, one line each, for numbers out of range; a folder that holds another run (naming what differs) or,
    without `resume`, any; a source that cannot be read or has changed; a disk that is full or not writable; too little
    memory; values that the dtype cannot hold.
    """
    asked = boundary.read(
        Request, dict(depth=depth, writers=writers, unit=unit, resume=resume, share=share), "What is asked of extract"
    )
    depth, writers, unit, share = asked.depth, asked.writers, asked.unit, asked.share
    check_room(extractor, depth)
    source = source if isinstance(source, Source) else open_source(source)
    index, count = share or (jax.process_index(), jax.process_count())
    folder = open_folder(out)

    def mine(number: int) -> bool:
        return number % count == index

    def begin() -> None:
        with folder.lock():  # nobody else writes: what is half-written is left from a run that died
            folder.sweep()
            store.claim(folder, about, resume)

    about = fingerprint(extractor, source, unit)
    workers.first(begin)
    with folder.lock(shared=count > 1), Guard() as guard, in_plain_words(extractor):
        store.claim(folder, about, resume=True)  # each process for itself: its versions and device may be others
        done = store.commits(folder)
        workers.meet() if extractor.mesh is not None else workers.part()  # nobody writes before all have read
        start = time.perf_counter()
        run = Run(extractor, folder, progress, start, sum(commit.examples for commit in done.values()))
        run.tell()
        chunks = Chunks(source, unit, mine if extractor.mesh is None else lambda number: True, done)
        planned = ahead(to_the_end(chunks.planned(extractor)), AHEAD, "planner")
        with Trace(trace) as tracing, Writers(run.write, writers) as pool, contextlib.closing(planned):
            for work in gathered(extractor, planned, depth, tracing):
                if mine(work.unit.number):
                    pool.put(work)
        committed = store.commits(folder)
        if complete := len(committed) == chunks.count:
            store.finish(folder, chunks.count)
        seconds = time.perf_counter() - start
    whole = committed.values()
    return RunReport(
        out=str(out),
        units=len(whole),
        rows=sum(c.rows for c in whole),
        bytes=sum(c.bytes for c in whole),
        written=run.units,
        tokens=run.tokens,
        padding=1 - run.tokens / run.slots if run.slots else 0.0,
        compilations=extractor.compilations + guard.compilations,
        seconds=seconds,
        tokens_per_second=run.tokens / seconds,
        complete=complete,
        device_idle=idle_share(trace) if trace and run.slots else None,
    )


def fingerprint(extractor: Extractor, source: Source, unit: int) -> dict:
    """What decides every byte of the store, as JSON values: a run goes on only where all of it is the same."""
    checkpoint, device = extractor.checkpoint, jax.devices()[0]
    tokenizer = checkpoint.tokenizer and hashlib.sha256(checkpoint.tokenizer.definition.encode()).hexdigest()
    packages = {name: importlib.metadata.version(name) for name in ("llama-jax", "jax", "jaxlib", "tokenizers")}
    making = {"generate": extractor.new_tokens} if isinstance(extractor, Generator) else {}
    return making | {
        "format": FORMAT,
        "model": {
            "name": Path(checkpoint.name).name,
            "weights_hash": checkpoint.weights_hash,
            "dtype": checkpoint.dtype,
            "config": asdict(checkpoint.config),
        },
        "tokenizer": tokenizer,
        "spec": store.describe(extractor.spec, extractor.row_shapes),
        "source": source.about,
        "unit": unit,
        "batch": list(extractor.shape),
        "pack": extractor.pack,
        "mesh": dict(extractor.mesh.shape) if extractor.mesh is not None else None,
        "versions": packages,
        "device": f"{device.platform} {device.device_kind}",
    }


@dataclass
class Chunks:
    """The units of a source that are this process's to run; counts all of them on the way."""

    source: Source
    size: int
    mine: Callable[[int], bool]
    done: dict[int, store.Commit]
    count: int = 0

    def planned(self, extractor: Extractor) -> Iterator[tuple[Unit, Chunk]]:
        """(unit, its examples) of what is not yet committed. Raises UserError where committed examples are no longer
        the source's."""
        ids = encode(extractor.checkpoint)
        for chunk in units(self.source, self.size):
            self.count += 1
            if (commit := self.done.get(chunk.number)) is not None:
                if commit.source_sha256 != chunk.sha256:
                    last = chunk.first + len(chunk.examples) - 1
                    raise UserError(
                        f"The source has changed: examples {chunk.first} to {last} are not those of unit"
                        f" {chunk.number}."
                        " Bring the old source back, or extract into a new folder."
                    )
            elif self.mine(chunk.number):
                yield extractor.plan(chunk.number, chunk.first, [ids(example) for example in chunk.examples]), chunk


class Run:
    """What is committed so far; `write` is called in any thread."""

    def __init__(
        self, extractor: Extractor, folder: Folder, progress: Callable[[Progress], None], start: float, before: int
    ):
        self.extractor, self.folder, self.progress, self.start, self.before = extractor, folder, progress, start, before
        self.lock = threading.Lock()
        self.units = self.examples = self.tokens = self.slots = self.bytes = 0

    def write(self, work: Work) -> None:
        """Commit a unit. Raises UserError for values that are not finite: they would spoil every mean."""
        unit, chunk = work.unit, work.chunk
        for site, found in work.moments.items():
            if not (np.isfinite(found.mean).all() and np.isfinite(found.m2).all()):
                raise UserError(
                    f"{site} has values in unit {unit.number} that {self.extractor.spec.dtype} cannot hold (not"
                    " finite);"
                    " choose bfloat16 or float32."
                )
        about = dict(first=unit.first, examples=unit.count, tokens=unit.tokens, source_sha256=chunk.sha256)
        commit = store.write_unit(self.folder, unit.number, work.values | unit.rows, about, work.moments)
        with self.lock:
            self.units, self.examples, self.tokens = (
                self.units + 1,
                self.examples + unit.count,
                self.tokens + unit.tokens,
            )
            self.slots += len(unit.batches) * self.extractor.shape[0] * self.extractor.shape[1]
            self.bytes += commit.bytes
            self.tell()

    def tell(self) -> None:
        seconds = time.perf_counter() - self.start
        self.progress(Progress(self.units, self.examples, self.tokens, self.bytes, seconds, self.before))


@contextlib.contextmanager
def in_plain_words(extractor: Extractor) -> Iterator[None]:
    """A device or host that is out of memory, in one line."""
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
            b, t = extractor.shape
            raise UserError(
                f"Out of memory at a batch of {b} x {t}; make it smaller (--batch, --length) or ask for fewer sites."
            ) from error
        raise
