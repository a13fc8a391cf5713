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
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import jax
from pydantic import Field

from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.threads import ahead
from llama_lab.activations import multihost, store
from llama_lab.activations.flow import Writers, check_room, gathered, to_the_end
from llama_lab.activations.folders import open_folder
from llama_lab.activations.plan import UNIT, Shard, begin, completed, share_of
from llama_lab.activations.program import Compiled
from llama_lab.activations.run import Progress, Run, RunReport
from llama_lab.activations.sources import Source, open_source
from llama_lab.activations.spec import Whole
from llama_lab.activations.trace import Trace, idle_share
from llama_lab.bench.guard import Guard

FORMAT = 1  # the store's version
AHEAD = 2  # planned units that wait for the device


class Pace(boundary.Declared, extra="forbid"):
    """How a run is done; nothing of it but `unit` shows in the store.

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
    """Write the activations of every example of a source into the folder `out`; goes on where earlier runs stopped.

    Any number of processes may do so at once, in one folder, for all units or for some; what is committed is left
    alone, and a unit that two do at once has the same bytes from both.

    source: see `sources.open_source`. units: numbers of those to do, taken one by one when there is room, so that an
    engine may hand them out as it goes; `plan.finish` completes the store then. shard: (index, count), the units with
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
            run.left, run.passed = multihost.agreed((run.left, run.passed))
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
    """The stages side by side, until all that is left of a run is committed."""
    extractor, together = run.extractor, run.extractor.mesh is not None
    planned = ahead(to_the_end(run.planned(look=not together)), AHEAD, "planner")
    with (
        Trace(trace) as tracing,
        Writers(run.write, asked.writers) as pool,
        contextlib.closing(planned),
        contextlib.closing(run),
    ):
        for work in gathered(extractor, planned, asked.depth, tracing):
            if not together or work.unit.number % jax.process_count() == jax.process_index():
                pool.put(work)


def fingerprint(extractor: Compiled, source: dict, unit: int) -> dict:
    """What decides every byte of the store, as JSON values: a run goes on only where all of it is the same. source:
    what identifies it."""
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
            "config": asdict(checkpoint.config),
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
