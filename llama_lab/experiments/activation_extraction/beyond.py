"""What `extract` does beyond one device and one disk: how long its device waits, what a mesh costs, and what writers
gain that put shards into an object store at once.

idle          the product's pipeline under a trace (`activations.trace`), and the same with every stage waiting for the
              one before it; both without a trace too, which says what tracing costs
mesh          the same extraction by one virtual device of the processor and over a mesh of two. They share the cores:
              this shows that the path gives the same activations and what it costs, not what two devices gain
uploads N ms  the files of one store put into an object store (`object_store`) by so many writers at once, the
              product's own, each request answered N ms later than the server could; every object is read back

A subject's first pass (`phase` is `cold`) is not timed; those that count (`warm`) run in interleaved blocks.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from llama_jax.checkpoint import load_config
from llama_jax.plumbing.errors import UserError
from llama_lab.activations import extraction, sharding
from llama_lab.activations.folder import Folder, LocalFolder, open_folder
from llama_lab.activations.program import Extractor
from llama_lab.activations.reading import ActivationStore
from llama_lab.activations.spec import ActivationSpec
from llama_lab.bench import AGAIN, WRONG, process
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts
from llama_lab.bench.guard import Region
from llama_lab.bench.lab import Lab
from llama_lab.bench.workload import blocks
from llama_lab.experiments.activation_extraction import object_store, rungs
from llama_lab.experiments.activation_extraction.passes import LIMIT, Extraction, Passes, Reference, beyond_rounding
from llama_lab.experiments.activation_extraction.pipeline import Setting, examples_of, product
from llama_lab.experiments.activation_extraction.rungs import Rung

IDLE, MESH, UPLOADS = "idle", "mesh", "uploads"
PIPELINED, WAITING = "extract", "each stage waits"
TRACED = ", traced"
SINGLE, SPREAD = "one device", "mesh of 2 x 1"
DEVICES = 2
VIRTUAL = process.Interpreter(settings=dict(JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES=str(DEVICES)))
LARGEST_OBJECT = 1 << 32  # bytes
AT_ONCE = 8  # objects that are read back, or removed, at a time; none of it is timed


class Pass(Extraction):
    """One pass. Of an upload `workers` are its writers, `bytes` and `wall_ns` those of the objects."""

    idle: float | None = None  # share of the traced time in which the device ran nothing
    # the furthest that a token's vector is from that of the first pass by one device, beyond rounding; relative
    apart: float | None = None
    objects: int = 0
    delay_ms: int = 0  # that the object store adds to each request


def writers_of(count: int) -> str:
    """An upload's subject."""
    return f"{count} writer{'s' * (count > 1)}"


@dataclass(frozen=True)
class Beyond(Experiment):
    """Passes of each part, a process a part.

    batch, length, unit, dtype: as of the ladder. eager: examples whose values are checked. beyond_examples: of the
    source. beyond_blocks: passes of each subject. upload_unit: examples of a shard that is uploaded; upload_writers:
    numbers of them; upload_delays: milliseconds that the object store adds to each request.
    """

    kind = Pass
    optional = True

    model: str
    seed: Seed
    batch: int
    length: int
    unit: int
    eager: int
    dtype: str
    beyond_examples: int
    beyond_blocks: int
    upload_unit: int
    upload_writers: tuple[int, ...]
    upload_delays: tuple[int, ...]

    def check(self) -> None:
        counted = ("batch", "unit", "eager", "beyond_examples", "beyond_blocks", "upload_unit")
        check_counts(**{name: getattr(self, name) for name in counted})
        check_counts(**{f"upload_writers[{i}]": n for i, n in enumerate(self.upload_writers)})
        if negative := [delay for delay in self.upload_delays if delay < 0]:
            raise UserError(f"upload_delays holds {negative[0]}; milliseconds are 0 or more.")
        if self.batch % DEVICES:
            raise UserError(f"batch is {self.batch}; a {SPREAD} shares out a multiple of {DEVICES} rows.")
        if self.length > (longest := load_config(self.model).max_position_embeddings):
            raise UserError(f"length is {self.length}; the model's context is {longest}.")

    def points(self, runner: Runner) -> list[Point]:
        last = self.beyond_blocks - 1
        points = [Point(MESH, last, self.meshed, self.rows(2), interpreter=VIRTUAL)]
        if self.upload_writers and not object_store.missing():
            rows = self.rows(len(self.upload_writers))
            delays = [(f"{UPLOADS} {delay} ms", dict(delay=delay)) for delay in self.upload_delays]
            points += [Point(run, last, self.uploaded, rows, asked) for run, asked in delays]
        return [*points, Point(IDLE, last, self.traced, self.rows(4))]

    def rows(self, subjects: int) -> int:
        """Rows that a point leaves of its last block; the first passes are in the first."""
        return subjects + 1 + subjects * (self.beyond_blocks == 1)

    def about(self, runner: Runner) -> dict:
        return dict(missing=object_store.missing() if self.upload_writers else [])

    # What the children run

    def meshed(self, lab: Lab) -> None:
        with ExitStack() as stack:
            passes, spec = self.begun(lab, stack, self.unit)
            first: dict[str, np.ndarray] = {}
            made = {SINGLE: None, SPREAD: sharding.mesh(DEVICES, 1)}
            subjects = {}
            for name, mesh in made.items():
                extractor = Extractor(passes.setting.loaded, spec, passes.setting.shape, mesh=mesh)
                run = product(passes.setting, extractor, passes.examples)
                subjects[name] = partial(beside, passes, Rung(name, extractor.sites, run, extractor.plan), first)
            self.interleaved(lab, subjects)

    def traced(self, lab: Lab) -> None:
        with ExitStack() as stack:
            passes, spec = self.begun(lab, stack, self.unit)
            extractor = Extractor(passes.setting.loaded, spec, passes.setting.shape)
            waiting = replace(passes.setting, depth=0, writers=0)
            subjects = {
                name + suffix: partial(watched, passes, setting, extractor, bool(suffix))
                for name, setting in ((PIPELINED, passes.setting), (WAITING, waiting))
                for suffix in ("", TRACED)
            }
            self.interleaved(lab, subjects)

    def uploaded(self, lab: Lab, delay: int) -> None:
        with ExitStack() as stack:
            passes, spec = self.begun(lab, stack, self.upload_unit)
            extractor = Extractor(passes.setting.loaded, spec, passes.setting.shape)
            rung = Rung(UPLOADS, extractor.sites, product(passes.setting, extractor, passes.examples), extractor.plan)
            out = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "store"
            rung.run(passes.examples, out)
            local = LocalFolder(out)
            objects = {name: local.read(name, LARGEST_OBJECT) for name in local.names()}
            store = Uploads(stack.enter_context(object_store.running(delay / 1e3)), objects, delay)
            subjects = {writers_of(n): partial(store.row, passes, rung, n) for n in self.upload_writers}
            self.interleaved(lab, subjects)

    def begun(self, lab: Lab, stack: ExitStack, unit: int) -> tuple[Passes, ActivationSpec]:
        """Passes over the source in units of so many examples, and what is kept of it."""
        loaded = lab.load()
        asked = examples_of(loaded, self.beyond_examples, self.length, self.seed)
        setting = Setting(loaded, self.batch, self.length, unit, self.dtype)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        known = min(self.eager, len(asked))
        passes = Passes(setting, asked, known, scratch, Reference(loaded, asked[:known]))
        return passes, rungs.spec_of(rungs.PRODUCT, loaded.config.num_hidden_layers, self.dtype)

    def interleaved(self, lab: Lab, subjects: Mapping[str, Callable[..., Pass]]) -> None:
        """A first pass of each subject, then the blocks: each once and the first of them twice, in seeded random
        order."""
        run, (base, *_) = lab.identity["run"], subjects
        where, drawn = dict(run=run, process=lab.identity["process"], seed=self.seed), [*subjects, base + AGAIN]
        for order, name in enumerate(subjects):
            lab.progress(f"{run}, first pass: {name}", order, len(subjects))
            lab.keep(subjects[name](name, phase="cold", block=0, order=order, **where))
        total = self.beyond_blocks * len(drawn)
        for block, order, name in blocks(drawn, self.beyond_blocks, self.seed, run):
            lab.progress(f"{run}, block {block + 1}: {name}", block * len(drawn) + order, total)
            place = dict(phase="warm", block=block, order=order, **where)
            lab.keep(subjects[name.removesuffix(AGAIN)](name, **place))


def as_pass(row: Extraction, why: str = "", **more) -> Pass:
    """A row of the ladder's kind with what is known beside it. why: it does not count."""
    reason = "; ".join(filter(None, (row.reason, why)))
    return Pass(**row.model_dump() | more | dict(valid=not reason, reason=reason))


def beside(passes: Passes, rung: Rung, first: dict[str, np.ndarray], name: str, **identity) -> Pass:
    """A pass whose store is held against the one that `first` keeps, where it is empty against itself."""
    apart = 0.0

    def compare(out: Path) -> None:
        nonlocal apart
        store = ActivationStore.open(out)
        values = {str(site): np.array(store[str(site)][:]) for site in rung.sites}
        first.update({} if first else values)
        apart = max(float(beyond_rounding(values[s], first[s].astype(np.float32)).max()) for s in values)

    row = passes.timed(rung, name, None, compare, **identity)
    why = "" if apart <= LIMIT else f"{WRONG}{apart:.2g} of a token's length away from one device"
    return as_pass(row, why, apart=apart)


def watched(passes: Passes, setting: Setting, extractor: Extractor, with_trace: bool, name: str, **identity) -> Pass:
    """A pass of `extract`, with or without a trace; timed by its own report, which ends before the trace is read."""
    reports = []

    def run(examples: Sequence, out: Path) -> None:
        pace = dict(depth=setting.depth, writers=setting.writers, unit=setting.unit, resume=False)
        trace = out.parent / "trace.json.gz" if with_trace else None
        reports.append(extraction.extract(extractor, examples, out, trace=trace, **pace))

    row = passes.timed(Rung(name, extractor.sites, run, extractor.plan), name, **identity)
    return as_pass(row.model_copy(update=dict(wall_ns=round(1e9 * reports[0].seconds))), idle=reports[0].device_idle)


@dataclass(frozen=True)
class Uploads:
    """Uploads of the same files. url: of an empty bucket. objects: name → content. delay: ms added to each request."""

    url: str
    objects: Mapping[str, bytes]
    delay: int

    def row(self, passes: Passes, rung: Rung, writers: int, name: str, **identity) -> Pass:
        """One upload into a place of its own, which is read back and removed."""
        folder = open_folder(f"{self.url}/{identity['phase']}-{identity['block']}-{identity['order']}")
        began = time.perf_counter_ns()
        upload(folder, self.objects, writers)
        wall = time.perf_counter_ns() - began
        why = differing(folder, self.objects)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(folder.remove, self.objects))
        judged = dict(rows=0, bytes=sum(map(len, self.objects.values())), error=None, reason="")
        row = passes.row(rung, name, wall, Region(), judged, **identity)
        return as_pass(row, why, workers=writers, objects=len(self.objects), delay_ms=self.delay)


def upload(folder: Folder, objects: Mapping[str, bytes], writers: int) -> None:
    """Put objects into a folder by so many of the product's own writers at once."""
    with extraction.Writers(lambda each: folder.write(*each), writers) as pool:
        for each in objects.items():
            pool.put(each)


def differing(folder: Folder, objects: Mapping[str, bytes]) -> str:
    """Which object there is not what was put there, by its SHA-256; "" if each is."""

    def came_back(name: str) -> bool:
        there = folder.read(name, LARGEST_OBJECT)
        return there is not None and hashlib.sha256(there).digest() == hashlib.sha256(objects[name]).digest()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        others = [name for name, same in zip(objects, pool.map(came_back, objects), strict=True) if not same]
    return f"{WRONG}{others[0]} came back with other bytes" if others else ""
