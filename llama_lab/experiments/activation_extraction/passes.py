"""Passes of rungs over one source, judged by what they leave on the disk, and where the time of a batch goes."""

from __future__ import annotations

import gc
import itertools
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax

from llama_lab.activations import batches, program
from llama_lab.activations.program import Extractor
from llama_lab.bench import protocol
from llama_lab.bench.guard import Guard, Region, TorchCounter
from llama_lab.experiments.activation_extraction import rungs
from llama_lab.experiments.activation_extraction.gate import NOTHING_WRITTEN, Reference
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
from llama_lab.experiments.activation_extraction.plan import Extraction
from llama_lab.experiments.activation_extraction.rungs import EAGER, PACKED, PRODUCT, Rung

STAGES = ("forward", "extraction", "copy", "Python", "disk")


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
        return self.eager if name == EAGER else len(self.examples)

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
    ):
        """One pass, an Extraction; warm, it is void if anything is compiled in it. then(store): called before that is
        removed.

        Judging is no part of what the guard sees, as the reference compiles.
        """
        examples, guard = self.examples[: self.count(rung.name)], guard or rung.guard()
        gc.collect()
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        try:
            with guard:
                start = time.perf_counter_ns()
                rung.run(examples, folder / "store")
                wall = time.perf_counter_ns() - start
            judged = (
                self.reference.judge(folder / "store", rung.sites, self.ids[: len(examples)])
                if rung.writes
                else NOTHING_WRITTEN
            )
            then(folder / "store")
        finally:
            shutil.rmtree(folder)
        return self.row(rung, name, wall, guard, judged, **identity)

    def row(self, rung: Rung, name: str, wall: int, guard: Region, judged: dict, phase: str, **identity) -> Extraction:
        setting, loaded, ids = self.setting, self.setting.loaded, self.ids[: self.count(rung.name)]
        made = [rung.plan(0, at, ids[at : at + setting.unit]) for at in range(0, len(ids), setting.unit)]
        reasons = [judged["reason"], guard.reason if phase == "warm" else ""]
        return Extraction(
            **identity,
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
            rows=judged["rows"],
            bytes=judged["bytes"],
            error=judged["error"],
            wall_ns=wall,
            **protocol.compiling(guard),
            valid=not any(reasons),
            reason="; ".join(filter(None, reasons)),
        )


def scaled_row(passes: Passes, workers: int, report: dict, why: str, out: Path, identity: dict) -> Extraction:
    """The row of a run by command; it may compile one program in each process, before its time begins."""
    config = passes.setting.loaded.config
    spec = rungs.spec_of(PRODUCT, config.num_hidden_layers, passes.setting.dtype)
    plan = partial(batches.plan, spec=spec, shape=(passes.setting.batch, passes.setting.length), pack=True)
    rung, compiled = Rung(PRODUCT, spec.resolve(config), None, plan), report.get("compilations", 0)
    judged = NOTHING_WRITTEN | dict(reason=why) if why else passes.reference.judge(out, rung.sites, passes.ids)
    row = passes.row(
        rung,
        f"{workers} process{'es' * (workers > 1)}",
        round(1e9 * report.get("seconds", 0)),
        Region(),
        judged,
        **identity,
    )
    late = f"compiled {compiled} programs in {workers} processes" if compiled > workers else ""
    reasons = [row.reason, late]
    return row.model_copy(
        update=dict(workers=workers, compiled=compiled, valid=not any(reasons), reason="; ".join(filter(None, reasons)))
    )


# Where the time of a batch goes ---------------------------------------------------------------------------------------


def budget(setting: Setting, asked: Sequence[Example], passes: int, scratch: str) -> list[dict]:
    """Where the time of a batch goes: each stage of `packing` by itself, waited for before the next begins.

    forward: the model up to the last layer that is kept, nothing kept. extraction: what the program that keeps takes
    more. copy: from device to host. Python: planning, tokenisation included. disk: writing, through the last fsync.
    Milliseconds a batch, one entry a unit and pass; the first pass compiles, and is left out.
    """
    spec, shape = (
        rungs.spec_of(PACKED, setting.loaded.config.num_hidden_layers, setting.dtype),
        (setting.batch, setting.length),
    )
    extractor = Extractor(setting.loaded, spec, shape)
    bare = Extractor(setting.loaded, spec, shape, compute=rungs.nothing_kept)
    return [entry for i in range(1 + passes) for entry in spent(setting, extractor, bare, asked, scratch) if i]


def spent(
    setting: Setting, extractor: Extractor, bare: Extractor, asked: Sequence[Example], scratch: str
) -> list[dict]:
    """{stage: ms a batch} of every unit of one pass."""
    found = []
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        where, planned = claimed(setting, extractor.spec, Path(folder) / "store"), units(setting, extractor.plan, asked)
        while True:
            at = [time.perf_counter_ns()]
            if (unit := next(planned, None)) is None:
                return found
            filling, totals = Filling(unit), Counter(Python=time.perf_counter_ns() - at[0])
            for batch in unit.batches:
                at = [time.perf_counter_ns()]
                jax.block_until_ready(without_copy(bare, batch))
                at.append(time.perf_counter_ns())
                values = jax.block_until_ready(without_copy(extractor, batch))
                at.append(time.perf_counter_ns())
                filling.take(batch, read(batch, values))
                at.append(time.perf_counter_ns())
                forward, kept, copy = (b - a for a, b in itertools.pairwise(at))
                totals += Counter(forward=forward, copy=copy)
                totals["extraction"] += kept - forward  # may be below nothing by the machine's noise
            began = time.perf_counter_ns()
            write(where, filling)
            totals["disk"] = time.perf_counter_ns() - began
            found.append({stage: totals[stage] / len(unit.batches) / 1e6 for stage in STAGES})
