"""Passes of rungs over one source, judged by what they leave on the disk, and where the time of a batch goes.

The gate of extraction: what a pass left is read back and held against the model run op by op.
"""

from __future__ import annotations

import gc
import itertools
import math
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax.checkpoint import Checkpoint
from llama_jax.plumbing.errors import UserError
from llama_lab.activations import batches, program
from llama_lab.activations.program import Extractor
from llama_lab.activations.reading import ActivationStore
from llama_lab.activations.spec import Site
from llama_lab.bench import WRONG, protocol
from llama_lab.bench.guard import Guard, Region, TorchCounter
from llama_lab.bench.record import Compiled, Row
from llama_lab.experiments.activation_extraction import rungs
from llama_lab.experiments.activation_extraction.pipeline import (
    Example,
    Filling,
    Setting,
    claimed,
    read,
    units,
    without_copy,
    write,
)
from llama_lab.experiments.activation_extraction.rungs import Rung

LADDER, SCALING, PROBE, SECOND = "ladder", "scaling", "probe", "second model"  # what `run` begins with
LIMIT = 1e-3  # a share of a token's vector, beyond the rounding of the dtype it is kept in
NOTHING_WRITTEN = dict(rows=0, bytes=0, error=None, reason="")
STAGES = ("forward", "extraction", "copy", "Python", "disk")


class Extraction(Compiled, Row):
    """One pass over the whole source by one rung. Times in ns, sizes in bytes."""

    subject: str
    backend: str
    model: str
    weights_hash: str
    dtype: str  # that the model computes in
    kept: str  # that activations are kept in
    sites: int
    depth: int  # layers that run
    batch: int
    length: int
    unit: int
    examples: int
    tokens: int  # padding left out
    batches: int
    slots: int  # tokens that the model reads, padding included
    rows: int  # on the disk
    bytes: int  # all files of the store together
    wall_ns: int  # from the text to the last fsync
    trace_ns: int  # compilation, within the pass; of a first pass, what was compiled ahead of it as well
    lower_ns: int
    backend_ns: int
    lowered: int
    compiled: int
    workers: int = 1  # processes that shared the units
    error: float | None = None  # the furthest that a token's vector is from the reference, beyond rounding; relative

    @property
    def tg(self) -> float:
        """Tokens/s, padding not counted; NaN if there is no time."""
        return self.tokens / self.wall_ns * 1e9 if self.wall_ns else math.nan

    @property
    def fill(self) -> float:
        """Share of what the model reads that is no padding."""
        return self.tokens / self.slots if self.slots else math.nan


class Reference:
    """resid_post of every layer of a few examples, by the model run op by op in its own dtype, one example at a time,
    not rounded."""

    def __init__(self, loaded: Checkpoint, examples: Sequence[Example]):
        self.loaded, self.ids = loaded, [program.encode(loaded)(example) for example in examples]
        self.known: dict[int, dict[str, np.ndarray]] = {}

    def values(self, example: int) -> dict[str, np.ndarray]:
        """{site: float32 [T D]}."""
        if example not in self.known:
            ids, config = jnp.asarray([self.ids[example]], jnp.int32), self.loaded.config
            sites = [Site("resid_pre", 0), *(Site("resid_post", layer) for layer in range(config.num_hidden_layers))]
            positions = jnp.arange(ids.shape[1], dtype=jnp.int32)[None]
            tapped = program.tapped(self.loaded.params, ids, positions, jnp.ones_like(ids), config=config, sites=sites)
            self.known[example] = {site: np.asarray(value[0], np.float32) for site, value in tapped.items()}
        return self.known[example]

    def judge(self, out: Path, sites: Sequence[Site], ids: Sequence[Sequence[int]]) -> dict:
        """What a pass left in `out`: {rows, bytes, error, reason}; the reason begins with "wrong: " where it is not
        what it should be.

        All rows must belong to the right tokens; the values are compared in the examples that the reference knows.
        """
        known = min(len(self.ids), len(ids))
        try:
            store = ActivationStore.open(out)
            columns = {name: store[name][:] for name in ("token", "example", "position")}
            rows = store.rows_of(range(known))
            values = {str(site): store[str(site)][rows] for site in sites}
        except UserError as error:
            return NOTHING_WRITTEN | dict(reason=f"{WRONG}no store that can be read: {error}")
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        seen = dict(rows=len(columns["token"]), bytes=size, error=None)
        wanted = dict(
            token=np.concatenate(ids),
            example=np.repeat(np.arange(len(ids)), [len(i) for i in ids]),
            position=np.concatenate([np.arange(len(i)) for i in ids]),
        )
        if off := [name for name, rows in wanted.items() if not np.array_equal(columns[name], rows)]:
            return seen | dict(reason=f"{WRONG}the {off[0]}s beside the rows are not the source's")
        worst, error = None, 0.0
        for site, value in values.items():
            expected = np.concatenate([self.values(example)[site] for example in range(known)])
            apart = float(beyond_rounding(value, expected).max())
            if not apart <= error:
                worst, error = site, apart
        reason = "" if error <= LIMIT else f"{WRONG}{worst} is {error:.2g} of a token's length away"
        return seen | dict(error=error, reason=reason)


def beyond_rounding(values: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Relative error [n] of each token's vector [n D], what its dtype must round off forgiven: half a unit in the last
    place."""
    unit = float(jnp.finfo(values.dtype).eps) / 2
    wide = expected.astype(np.float64)
    apart = np.maximum(np.abs(values.astype(np.float64) - wide) - unit * np.abs(wide), 0)
    return np.linalg.norm(apart, axis=1) / np.maximum(np.linalg.norm(wide, axis=1), np.finfo(np.float64).tiny)


@dataclass
class Passes:
    """Passes of rungs over one source, each into a folder of its own, which is read back, judged and removed."""

    setting: Setting
    examples: Sequence[Example]
    eager: int
    scratch: Path
    reference: Reference

    def __post_init__(self):
        self.ids = [program.encode(self.setting.loaded)(example) for example in self.examples]

    def count(self, name: str) -> int:
        """How many of the examples a rung is given."""
        return self.eager if name == rungs.EAGER else len(self.examples)

    def first(self, name: str, **identity) -> tuple[Rung, Extraction]:
        """A rung, built, and its first pass; what building compiles counts, its time does not."""
        guard = TorchCounter() if name in rungs.RIVALS else Guard()
        with guard:
            rung = rungs.build(name, self.setting, self.examples[: self.count(name)])
        return rung, self.timed(rung, name, guard, **identity)

    def timed(
        self,
        rung: Rung,
        name: str,
        guard: Region | None = None,
        then: Callable[[Path], None] = lambda out: None,
        **identity,
    ) -> Extraction:
        """One pass; warm, it is void if anything is compiled in it. then(store): called before that is removed.

        Judging is no part of what the guard sees, as the reference compiles.
        """
        count = self.count(rung.name)
        examples = self.examples[:count]
        guard = guard or rung.guard()
        gc.collect()
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        out = folder / "store"
        try:
            with guard:
                start = time.perf_counter_ns()
                rung.run(examples, out)
                wall = time.perf_counter_ns() - start
            judged = self.reference.judge(out, rung.sites, self.ids[:count]) if rung.writes else NOTHING_WRITTEN
            then(out)
        finally:
            shutil.rmtree(folder)
        return self.row(rung, name, wall, guard, judged, **identity)

    def by_command(self, workers: int, report: dict, why: str, out: Path, **identity) -> Extraction:
        """The row of a run by command; it may compile one program in each process, before its time begins.

        report: of `--json`, empty if there is none, and then why.
        """
        config, setting = self.setting.loaded.config, self.setting
        spec = rungs.spec_of(rungs.PRODUCT, config.num_hidden_layers, setting.dtype)
        plan = partial(batches.plan, spec=spec, shape=setting.shape, pack=True)
        rung, compiled = Rung(rungs.PRODUCT, spec.resolve(config), None, plan), report.get("compilations", 0)
        judged = NOTHING_WRITTEN | dict(reason=why) if why else self.reference.judge(out, rung.sites, self.ids)
        if compiled > workers:
            late = f"compiled {compiled} programs in {workers} processes"
            judged |= dict(reason="; ".join(filter(None, (judged["reason"], late))))
        name, wall = f"{workers} process{'es' * (workers > 1)}", round(1e9 * report.get("seconds", 0))
        row = self.row(rung, name, wall, Region(), judged, **identity)
        return row.model_copy(update=dict(workers=workers, compiled=compiled))

    def row(self, rung: Rung, name: str, wall: int, guard: Region, judged: dict, phase: str, **identity) -> Extraction:
        setting, loaded, ids = self.setting, self.setting.loaded, self.ids[: self.count(rung.name)]
        made = [rung.plan(0, at, ids[at : at + setting.unit]) for at in range(0, len(ids), setting.unit)]
        reason = "; ".join(filter(None, (judged["reason"], guard.reason if phase == "warm" else "")))
        return Extraction(
            **identity | judged | protocol.compiling(guard) | dict(reason=reason),
            valid=not reason,
            phase=phase,
            subject=name,
            backend=rung.backend,
            model=loaded.name,
            weights_hash=loaded.weights_hash,
            dtype=loaded.dtype,
            kept=setting.dtype,
            sites=len(rung.sites),
            depth=loaded.config.num_hidden_layers if rung.whole else 1 + max(site.layer for site in rung.sites),
            batch=setting.batch,
            length=setting.length,
            unit=setting.unit,
            examples=len(ids),
            tokens=sum(map(len, ids)),
            batches=sum(len(unit.batches) for unit in made),
            slots=sum(b.ids.size for unit in made for b in unit.batches),
            wall_ns=wall,
        )


# Where the time of a batch goes ---------------------------------------------------------------------------------------


def budget(setting: Setting, asked: Sequence[Example], passes: int, scratch: str) -> list[dict]:
    """Where the time of a batch goes: each stage of `packing` by itself, waited for before the next begins.

    forward: the model up to the last layer that is kept, nothing kept. extraction: what the program that keeps takes
    more. copy: from device to host. Python: planning, tokenisation included. disk: writing, through the last fsync.
    Milliseconds per batch, one entry per unit and pass; the first pass compiles, and is left out.
    """
    spec = rungs.spec_of(rungs.PACKED, setting.loaded.config.num_hidden_layers, setting.dtype)
    extractor = Extractor(setting.loaded, spec, setting.shape)
    bare = Extractor(setting.loaded, spec, setting.shape, compute=rungs.nothing_kept)
    return [entry for i in range(1 + passes) for entry in spent(setting, extractor, bare, asked, scratch) if i]


def spent(
    setting: Setting, extractor: Extractor, bare: Extractor, asked: Sequence[Example], scratch: str
) -> list[dict]:
    """{stage: ms per batch} of every unit of one pass."""
    entries, now = [], time.perf_counter_ns
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        where, planned = claimed(setting, extractor.spec, Path(folder) / "store"), units(setting, extractor.plan, asked)
        while True:
            began = now()
            if (unit := next(planned, None)) is None:
                return entries
            filling, totals = Filling(unit), Counter(Python=now() - began)
            for batch in unit.batches:
                at = [now()]
                jax.block_until_ready(without_copy(bare, batch))
                at.append(now())
                values = jax.block_until_ready(without_copy(extractor, batch))
                at.append(now())
                filling.take(batch, read(batch, values))
                at.append(now())
                forward, kept, copy = (b - a for a, b in itertools.pairwise(at))
                totals += Counter(forward=forward, copy=copy)
                totals["extraction"] += kept - forward  # may be below nothing by the machine's noise
            began = now()
            write(where, filling)
            totals["disk"] = now() - began
            entries.append({stage: totals[stage] / len(unit.batches) / 1e6 for stage in STAGES})
