"""What a pass of several rows through the whole model costs, over one row: the weights are read once for all.

rows of a sequence  consecutive tokens, such as a draft that is verified or a piece of a prompt
rows of a batch     one token of each of several sequences, such as answers that are made together

Every pass gives the logits of all its rows. A row is one engine in one process, all its shapes in turn in each block.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from operator import attrgetter

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax import checkpoint, generate, transforms
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import available, frames, passages, statistics, summary
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts, whole
from llama_lab.bench.footprints import LIBRARIES
from llama_lab.bench.lab import Lab
from llama_lab.bench.record import Row
from llama_lab.bench.workload import blocks, shuffled

SEQUENCE, BATCH = "sequence", "batch"
KINDS = (SEQUENCE, BATCH)
WARM = 2  # passes of a shape that are not counted


class Pass(Row):
    """Passes of so many rows by one engine, each timed until its logits are there."""

    engine: str  # placement or peer
    kind: str  # one of KINDS
    rows: int
    context: int  # positions in the cache before it
    pass_ns: list[int]

    @property
    def median_ns(self) -> float:
        return float(np.median(self.pass_ns))


@dataclass(frozen=True)
class PassesOfRows(Experiment):
    """`row_blocks` processes of each engine, in seeded order; in each every shape is passed `row_passes` times.

    What cannot run here is reported as missing in the journal's notes.
    """

    kind = Pass

    model: str
    seed: Seed
    row_engines: tuple[str, ...]
    rows: tuple[int, ...]
    row_contexts: tuple[int, ...]
    row_passes: int
    row_blocks: int

    def check(self) -> None:
        check_counts(passes=self.row_passes, blocks=self.row_blocks)
        if 1 not in self.rows or min(self.rows) < 1:
            raise UserError(
                f"rows are {list(self.rows)}; they must be positive and hold 1, which the others are compared with."
            )
        longest = max(self.rows)
        passages.check_contexts(self.model, [context + longest for context in self.row_contexts], longest)
        for name in self.row_engines:
            if name not in ENGINES and parse(name).cache != "fixed":
                raise UserError(f"{name} keeps no cache of a fixed size, so that it can go over the same rows again.")

    @property
    def shapes(self) -> list[tuple[str, int, int]]:
        """(kind, rows, context) of every pass."""
        kinds = [(kind, n) for kind in KINDS for n in self.rows if n > 1 or kind == SEQUENCE]
        return [(kind, n, context) for kind, n in kinds for context in self.row_contexts]

    def points(self, runner: Runner) -> list[Point]:
        return [
            Point(f"rows {name}", block, self.passing, len(self.shapes), dict(engine=name), f"rows of {name}")
            for block, _, name in blocks(runner.present(self.row_engines), self.row_blocks, self.seed)
        ]

    def about(self, runner: Runner) -> dict:
        return dict(missing=runner.missing)

    def passing(self, lab: Lab, engine: str) -> None:
        """All shapes of one engine, interleaved pass by pass."""
        for library in LIBRARIES.get(available.backend_of(engine), ()):
            import_module(library)
        make = ENGINES.get(engine, placed)
        loaded = checkpoint.load(lab.model, available.loaded_as(engine, lab.model))
        ready = [make(loaded, engine, *shape, self.seed) for shape in self.shapes]
        times: list[list[int]] = [[] for _ in self.shapes]
        for n in range(WARM + self.row_passes):
            for i in shuffled(range(len(ready)), self.seed, lab.block, n):
                lab.announce()
                began = time.perf_counter_ns()
                ready[i]()
                times[i] += [time.perf_counter_ns() - began] if n >= WARM else []
        for order, ((kind, rows, context), taken) in enumerate(zip(self.shapes, times, strict=True)):
            fields = dict(order=order, seed=self.seed, phase="warm", valid=True, pass_ns=taken)
            lab.keep(Pass(**lab.identity, engine=engine, kind=kind, rows=rows, context=context, **fields))
        lab.notes["subject"] = engine


def placed(loaded: checkpoint.Checkpoint, name: str, kind: str, rows: int, context: int, seed: int) -> Callable:
    """A pass of a placement: its own program for several tokens, and a cache that is given back as long as it was."""
    placement = replace(parse(name), donate=True)
    sequences, tokens = (1, rows) if kind == SEQUENCE else (rows, 1)
    params = transforms.prepare(generate.weights(loaded, placement), placement)
    verify = transforms.verifier(loaded.config, placement)
    pad = jnp.zeros(sequences, jnp.int32)
    slots = generate.bucket(context + rows)
    held = [transforms.new_cache(params, pad, slots, loaded.config, placement)]
    ids = np.random.default_rng(seed).integers(0, loaded.config.vocab_size, (sequences, tokens)).astype(np.int32)

    def run() -> None:
        cache = replace(held.pop(), length=jnp.int32(context))
        best, after = verify(params, ids, cache)
        held.append(after)
        jax.block_until_ready(best)

    return run


def llamacpp(loaded: checkpoint.Checkpoint, name: str, kind: str, rows: int, context: int, seed: int) -> Callable:
    """A pass of llama.cpp: one `llama_decode`; the context's positions are filled once."""
    from llama_lab.peers import llamacpp as peer

    sequences = 1 if kind == SEQUENCE else rows
    held = peer.Context(peer.opened(peer.weights_of(loaded, name)), generate.bucket(context + rows), sequences, True)
    ids = np.random.default_rng(seed).integers(0, loaded.config.vocab_size, context + rows).tolist()
    held.clear()
    for row in range(sequences):
        for start in range(0, context, peer.MICRO_BATCH):
            held.decode([(ids[i], i, row, False) for i in range(start, min(start + peer.MICRO_BATCH, context))])
    asked = [(ids[context + r], context + (r if sequences == 1 else 0), r % sequences, True) for r in range(rows)]

    def run() -> None:
        for row in range(sequences):
            held.forget(context, row)
        held.decode(asked)
        held.logits(rows - 1)

    return run


ENGINES = dict.fromkeys(("llamacpp", "llamacpp+q4_0", "llamacpp+q8_0"), llamacpp)


# What the rows say ----------------------------------------------------------------------------------------------------


def table(rows: Sequence[Pass], seed: int = 0) -> list[dict]:
    """One entry per shape: {engine, kind, context, rows, ms: Summary, ratio: of processes' medians to one row's}."""
    mine = [p for p in whole(rows) if p.valid and p.pass_ns]
    single = {(p.engine, p.context, p.block): p.median_ns for p in mine if (p.kind, p.rows) == (SEQUENCE, 1)}
    shape = ("engine", "kind", "context", "rows")
    entries = []
    for key, passes in summary.grouped(mine, attrgetter(*shape)).items():
        ms = [ns / 1e6 for p in passes for ns in p.pass_ns]
        pairs = [(p.median_ns, single.get((p.engine, p.context, p.block))) for p in passes]
        above, below = ([pair[side] for pair in pairs if pair[1]] for side in (0, 1))
        entry = dict(zip(shape, key, strict=True))
        entry["ms"] = statistics.summarise(ms, seed, [p.process for p in passes for _ in p.pass_ns])
        entries.append(entry | dict(ratio=statistics.of_times(statistics.ratio(above, below, seed))))
    return entries


COLUMNS = frames.Columns(
    {
        "engine": "engine",
        "rows of a": "kind",
        "context": "context",
        "rows": "rows",
        "ms": "ms.median",
        "passes": "ms.n",
        "over one row": "ratio.words",
        "processes": "ratio.n",
    },
    digits=3,
)
