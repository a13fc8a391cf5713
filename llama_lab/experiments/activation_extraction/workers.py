"""What several workers are worth and what a unit costs, each run a command of its own, engine beside engine.

Two questions, two models. Tokens/s by engine and number of workers are those of a real model. What a unit costs beside
the tokens in it (being handed out, planned, written, committed) is the slope of a run's seconds over its number of
units at the same tokens: it is seen where the tokens cost next to nothing, on a model of two small layers.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from llama_jax.checkpoint import find, load, load_config
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import WRONG, process, protocol
from llama_lab.bench.experiment import Experiment, Runner, Seed, check_counts
from llama_lab.bench.record import Row
from llama_lab.bench.workload import blocks
from llama_lab.experiments.activation_extraction import rungs
from llama_lab.experiments.activation_extraction.pipeline import Example, examples_of

SCALING, OVERHEAD, UNIT = "scaling", "overhead", "unit"
ONE, CHILDREN, RAY = "one process", "child processes", "Ray actors"
SMALL = (
    "random:smollm2-135m,num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,"
    "num_key_value_heads=2,head_dim=16,vocab_size=97"
)
SMALL_BATCH, SMALL_LENGTH = 32, 32


class Run(Row):
    """One run of the command, or one unit of such a run. Times in ns.

    wall_ns: from the first worker that was ready to the last commit; of a unit, since the commit before. start_ns: all
    the rest of the command: Python, the engine, weights, compiling, leaving.
    """

    subject: str
    model: str
    weights_hash: str
    workers: int
    unit: int  # examples
    units: int
    tokens: int
    bytes: int
    wall_ns: int
    start_ns: int
    sha256: str  # of all files of the store

    @property
    def tg(self) -> float:
        """Tokens/s, padding not counted; NaN if there is no time."""
        return self.tokens / self.wall_ns * 1e9 if self.wall_ns else math.nan


@dataclass(frozen=True)
class Kind:
    """Runs that differ in nothing but luck."""

    run: str
    subject: str
    workers: int
    unit: int

    @property
    def options(self) -> dict[str, object]:
        return dict(processes=self.workers) | (dict(engine="ray") if self.subject == RAY else {})


@dataclass(frozen=True)
class Workers(Experiment):
    """Runs of the command that the journal does not hold yet, each block's in seeded random order.

    workers: numbers of them. batch, length, worker_unit, worker_examples: of the real model's runs. unit_sizes: of
    units, in batches, of the small model's runs over `unit_examples` examples. worker_starts: runs of each.
    """

    kind = Run

    model: str
    seed: Seed
    batch: int
    length: int
    workers: tuple[int, ...]
    worker_unit: int
    worker_examples: int
    worker_starts: int
    unit_sizes: tuple[int, ...]
    unit_examples: int

    def check(self) -> None:
        names = ("batch", "worker_unit", "worker_examples", "worker_starts", "unit_examples")
        check_counts(**{name: getattr(self, name) for name in names})
        check_counts(**{f"workers[{i}]": n for i, n in enumerate(self.workers)})
        if len(set(self.unit_sizes)) < 2 or min(self.unit_sizes) < 1:
            raise UserError(
                f"unit_sizes is {list(self.unit_sizes)}; a slope takes two different numbers of batches from 1 on."
            )

    @property
    def kinds(self) -> list[Kind]:
        """One process of either run; children from two on; actors from one on, as many."""
        kinds, most = [], max(self.workers)
        units = {SCALING: (self.worker_unit,), OVERHEAD: tuple(SMALL_BATCH * n for n in self.unit_sizes)}
        for run, sizes in units.items():
            several = self.workers if run == SCALING else (most,)
            for size in sizes:
                kinds.append(Kind(run, ONE, 1, size))
                kinds += [Kind(run, CHILDREN, n, size) for n in several if n > 1]
                kinds += [Kind(run, RAY, n, size) for n in several if find_spec("ray")]
        return kinds

    def measure(self, runner: Runner) -> tuple[list[Run], dict]:
        loaded, kinds, journal = load(self.model), self.kinds, runner.journal
        shape, small_shape = dict(batch=self.batch, length=self.length), dict(batch=SMALL_BATCH, length=SMALL_LENGTH)
        asked = {  # run → its examples and options
            SCALING: (
                examples_of(loaded, self.worker_examples, self.length, self.seed),
                dict(model=self.model, sites=rungs.sites_of(loaded), **shape),
            ),
            OVERHEAD: (
                small_examples(self.unit_examples, self.seed),
                dict(model=SMALL, sites="resid_post:0", **small_shape),
            ),
        }
        for number, (block, _, kind) in enumerate(blocks(kinds, self.worker_starts, self.seed)):
            done = {(t.run, t.block, t.subject, t.workers, t.unit) for t in journal.trials}
            if (kind.run, block, kind.subject, kind.workers, kind.unit) in done:
                continue
            what = f"{kind.run}: {kind.subject}, {kind.workers}, units of {kind.unit}"
            runner.progress(what, number, self.worker_starts * len(kinds))
            identity = dict(block=block, order=number, process=journal.next_process(), seed=self.seed, phase="warm")
            with protocol.alone(), tempfile.TemporaryDirectory() as folder:
                for row in rows_of(runner, kind, *asked[kind.run], Path(folder), identity):
                    journal.append(row)
        gaps = [] if find_spec("ray") else [dict(name=RAY, reason="Ray is not installed here", remedy="make ray")]
        sizes = dict(sizes=self.unit_sizes, small=self.unit_examples, starts=self.worker_starts, seed=self.seed)
        plan = dict(workers=self.workers, examples=self.worker_examples, unit=self.worker_unit, **shape, **sizes)
        return journal.trials, dict(missing=gaps, small=SMALL, plan=plan)


def rows_of(
    runner: Runner, kind: Kind, asked: Sequence[Example], options: dict, folder: Path, identity: dict
) -> Iterator[Run]:
    """The units of one run, and after them the run: that is the row that says it is done."""
    report, why, seconds = extracted(asked, folder, options | dict(unit=kind.unit) | kind.options, runner.limit)
    digest = "" if why else content(folder / "store")
    why = why or judged(runner.journal.trials, kind, report, digest)
    wall = report.get("seconds", 0.0)
    row = Run(
        **identity,
        run=kind.run,
        subject=kind.subject,
        model=options["model"],
        weights_hash=find(options["model"]).hash(),
        workers=kind.workers,
        unit=kind.unit,
        units=report.get("units", 0),
        tokens=report.get("tokens", 0),
        bytes=report.get("bytes", 0),
        wall_ns=round(wall * 1e9),
        start_ns=round((seconds - wall) * 1e9),
        sha256=digest,
        valid=not why,
        reason=why,
    )
    if (kind.run, kind.subject) == (SCALING, ONE) and not why:
        at = sorted(path.stat().st_mtime_ns for path in (folder / "store").glob("units/*/*.json"))
        for before, after in itertools.pairwise(at):  # the commits of a store that one process wrote
            yield row.model_copy(update=dict(run=UNIT, units=1, tokens=0, bytes=0, wall_ns=after - before, start_ns=0))
    yield row


def extracted(asked: Sequence[Example], folder: Path, options: dict, limit: float) -> tuple[dict, str, float]:
    """`llama-jax extract` of these examples into FOLDER/store, as a command of its own in a clean environment, on all
    cores, for at most `limit` seconds: (its report, why there is none, seconds of the whole command)."""
    source = folder / "examples.jsonl"
    source.write_text("".join(json.dumps({"text": example}) + "\n" for example in asked), encoding="utf-8")
    words = [f"--{name}={value}" for name, value in (options | dict(source=source, out=folder / "store")).items()]
    command = [sys.executable, "-m", "llama_lab", "extract", "--json", *words]
    environment = process.clean_environment(len(process.allowed_cores()))
    began = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment)
    except subprocess.TimeoutExpired:
        return {}, f"stopped after {limit:g} s", time.perf_counter() - began
    seconds = time.perf_counter() - began
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return {}, last[0].removeprefix("error: ")[:200], seconds
    return json.loads(done.stdout.strip().splitlines()[-1]), "", seconds


def small_examples(count: int, seed: int) -> list[list[int]]:
    """Random ids, each a full row of the small model's batch: no size of unit has padding that another lacks."""
    draw, vocabulary = random.Random(seed), load_config(SMALL).vocab_size
    return [[draw.randrange(vocabulary) for _ in range(SMALL_LENGTH)] for _ in range(count)]


def content(store: Path) -> str:
    """A digest of all files of a store with their names."""
    digest = hashlib.sha256()
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        digest.update(path.relative_to(store).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def judged(rows: Sequence[Run], kind: Kind, report: dict, digest: str) -> str:
    """Why a store does not count: not whole, or not the bytes that the first run of its kind of units wrote."""
    if not report["complete"]:
        return "not all units are committed"
    alike = (t.sha256 for t in rows if (t.run, t.unit) == (kind.run, kind.unit) and t.valid)
    return "" if next(alike, digest) == digest else f"{WRONG}other bytes than the first run wrote"
