"""How fast activations of a text get onto the disk, one improvement at a time: the ladder of `rungs`, measured.

Tokens/s are non-padding tokens over the seconds from the text to the last fsync. In one process every rung first makes
a first pass, in which it may compile (`phase` is `cold`), then passes over the same text in interleaved blocks
(`warm`), in which it may not: a pass in which anything was compiled is void. Whatever a pass leaves on the disk is read
back and held against the model run op by op in float32: a rung that wrote other values has no time.
"""

from __future__ import annotations

import gc
import itertools
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import jax

from llama_jax.checkpoint import Checkpoint, load, load_config
from llama_jax.config import ModelConfig
from llama_lab.activations import batches, program
from llama_lab.activations.program import Extractor
from llama_lab.activations.reading import ActivationStore
from llama_lab.activations.spec import ActivationSpec
from llama_lab.bench import AGAIN, protocol
from llama_lab.bench.guard import Guard, Region, TorchCounter
from llama_lab.bench.job import Job, opened, watched, whole
from llama_lab.bench.journal import Journal
from llama_lab.bench.order import shuffled
from llama_lab.experiments.activation_extraction import command, probing, rungs
from llama_lab.experiments.activation_extraction.gate import NOTHING_WRITTEN, Reference
from llama_lab.experiments.activation_extraction.pipeline import (
    Example,
    Filling,
    Setting,
    claimed,
    product,
    read,
    units,
    without_copy,
    write,
)
from llama_lab.experiments.activation_extraction.plan import (
    LADDER,
    OF_SECOND,
    PROBE,
    PROBED,
    SCALING,
    SECOND,
    Extraction,
    Plan,
    check_plan,
    examples_of,
)
from llama_lab.experiments.activation_extraction.rungs import BASE, EAGER, PACKED, PRODUCT, Rung

FEWER = 8  # the second model is given this part of the examples
STAGES = ("forward", "extraction", "copy", "Python", "disk")


def record(
    journal: Journal,
    *,
    model: str,
    seed: int,
    batch: int,
    length: int,
    unit: int,
    examples: int,
    eager: int,
    blocks: int,
    processes: int,
    scaling: Sequence[int],
    starts: int,
    probe: int,
    second: str,
    dtype: str,
) -> tuple[list[Extraction], dict]:
    """All passes of a plan, and what the meta file says of them. Raises UserError for a plan that cannot be."""
    plan = Plan(
        batch=batch,
        length=length,
        unit=unit,
        examples=examples,
        eager=eager,
        blocks=blocks,
        processes=processes,
        scaling=tuple(scaling),
        starts=starts,
        probe=probe,
        second=second,
        seed=seed,
        dtype=dtype,
    )
    check_plan(plan, load_config(model))
    loaded = load(model)
    gaps = measure(Job(model, None, journal), loaded, plan)
    return whole(journal.trials), dict(missing=gaps, text="English" if loaded.tokenizer else "random ids")


def measure(job: Job, loaded: Checkpoint, plan: Plan) -> list[dict]:
    """Everything that the journal does not hold yet; returns what could not be measured here: {name, reason,
    remedy}."""
    check_plan(plan, loaded.config)
    gaps = [gap for gap in rungs.missing(job.model) if gap["name"] in plan.subjects]
    names = [name for name in plan.subjects if name not in {gap["name"] for gap in gaps}]
    asked = examples_of(loaded, plan.examples, plan.length, plan.seed)
    scratch = str(job.journal.path.parent if job.journal.path else tempfile.gettempdir())
    common = dict(plan=asdict(plan), scratch=scratch)
    second = [name for name in names if name in OF_SECOND] if plan.second else []
    for run, model, of_model in ((LADDER, job.model, names), (SECOND, plan.second, second)):
        texts = asked if run == LADDER else random_ids(load_config(model), plan) if of_model else []
        for p in range(plan.processes if of_model else 0):
            blocks = list(range(p * plan.blocks, (p + 1) * plan.blocks))
            rows = len(of_model) + (BASE in of_model)
            asked_of = dict(names=of_model, blocks=blocks, asked=texts)
            job.child(run, blocks[-1], f"{__name__}:ladder", rows, model=model, **asked_of, **common)
    if plan.probe:
        sample = examples_of(loaded, plan.probe, plan.length, plan.seed + 1)
        job.child(PROBE, 0, f"{__name__}:probe", 1, asked=sample, **common)
    if plan.scaling:
        scaling(job, loaded, plan, asked, Path(scratch))
    return gaps


def scaling(job: Job, loaded: Checkpoint, plan: Plan, asked: Sequence[Example], scratch: Path) -> None:
    """`llama-jax extract --processes N` over the same examples, each number of processes `starts` times, in seeded
    random order.

    The time is the run's own: starting Python, loading the weights and compiling come before it, in each process.
    """
    passes = Passes(setting_of(loaded, plan), asked, plan.eager, scratch, Reference(loaded, asked[: plan.eager]))
    for block in range(plan.starts):
        drawn = shuffled(plan.scaling, plan.seed, SCALING, block)
        for order, workers in enumerate(drawn):
            run = f"{SCALING} {workers}"
            if any(t.run == run and t.block == block for t in job.journal.trials):
                continue
            job.progress(f"processes: {workers}", block * len(drawn) + order, plan.starts * len(drawn))
            with tempfile.TemporaryDirectory(dir=scratch) as folder, protocol.alone():
                report, why = by_command(job, plan, loaded, asked, workers, Path(folder))
                identity = dict(
                    run=run, block=block, order=order, process=job.journal.next_process(), seed=plan.seed, phase="warm"
                )
                job.journal.append(scaled_row(passes, workers, report, why, Path(folder) / "store", identity))


def by_command(
    job: Job, plan: Plan, loaded: Checkpoint, asked: Sequence[Example], workers: int, folder: Path
) -> tuple[dict, str]:
    """(the report of `llama-jax extract --json`, "") or ({}, why there is none)."""
    layers = ",".join(map(str, rungs.quarter(loaded.config.num_hidden_layers)))
    options = dict(
        model=job.model,
        source=command.write_source(folder / "examples.jsonl", list(asked)),
        sites=f"resid_post:{layers}",
        out=folder / "store",
        keep=plan.dtype,
        dtype=job.dtype,
        batch=plan.batch,
        length=plan.length,
        unit=plan.unit,
        processes=workers,
    )
    report, why, _ = command.extracted(options, job.limit)
    return report, why


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


# What the children run ------------------------------------------------------------------------------------------------


def setting_of(loaded: Checkpoint, plan: Plan) -> Setting:
    return Setting(loaded, plan.batch, plan.length, plan.unit, plan.dtype)


def random_ids(config: ModelConfig, plan: Plan) -> list[Example]:
    """Examples for the second model, whose tokenizer is not here; fewer, since it is larger."""
    nobody, count = Checkpoint("", config, None, None, "", "", ""), max(plan.unit, plan.examples // FEWER)
    return examples_of(nobody, count, plan.length, plan.seed)


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


def ladder(
    say: Callable, job: dict, identity: dict, plan: dict, names: list, blocks: list, asked: list, scratch: str
) -> dict:
    """A first pass of every rung, then the blocks: every rung once and the denominator twice, in seeded random
    order."""
    plan, run = Plan(**plan), identity["run"]
    identity = {k: v for k, v in identity.items() if k not in ("run", "block")} | dict(seed=plan.seed)
    with watched(say):
        loaded = opened(job)[0]
        setting = setting_of(loaded, plan)
        passes = Passes(setting, asked, plan.eager, Path(scratch), Reference(loaded, asked[: plan.eager]))
        made: dict[str, Rung] = {}
        for order, name in enumerate(names):
            say("progress", [f"first pass: {name}", order, len(names)])
            made[name], row = passes.first(name, run=run, block=blocks[0], order=order, phase="cold", **identity)
            say("trial", row.model_dump())
        for i, block in enumerate(blocks):
            drawn = [*names, *[BASE + AGAIN] * (BASE in names)]
            random.Random(f"{plan.seed} {run} {block}").shuffle(drawn)
            for order, name in enumerate(drawn):
                say("progress", [f"block {block + 1}: {name}", i * len(drawn) + order, len(blocks) * len(drawn)])
                row = passes.timed(
                    made[name.removesuffix(AGAIN)], name, run=run, block=block, order=order, phase="warm", **identity
                )
                say("trial", row.model_dump())
        if run == LADDER and blocks[0] == 0:
            say("progress", ["budget of a batch", 0, 1])
            say("note", dict(budget=budget(setting, asked, len(blocks), scratch)))
    return {}


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
            trace_ns=round(guard.seconds("trace") * 1e9),
            lower_ns=round(guard.seconds("lower") * 1e9),
            backend_ns=round(guard.backend_seconds * 1e9),
            lowered=guard.count("lower"),
            compiled=guard.compilations,
            valid=not any(reasons),
            reason="; ".join(filter(None, reasons)),
        )


def probe(say: Callable, job: dict, identity: dict, plan: dict, asked: list, scratch: str) -> dict:
    """Every layer of a sample through `extract`, and what a linear probe reads in the store (`probing.by_layer`), as a
    note."""
    plan = Plan(**plan)
    with watched(say):
        loaded = opened(job)[0]
        config, setting = loaded.config, setting_of(loaded, plan)
        passes = Passes(setting, asked, plan.eager, Path(scratch), Reference(loaded, asked[: plan.eager]))
        say("progress", ["every layer, for the linear probe", 0, 1])
        with Guard() as guard:
            spec = ActivationSpec(probing.SITES, dtype=plan.dtype)
            extractor = Extractor(loaded, spec, (plan.batch, plan.length))
        rung = Rung(PROBED, extractor.sites, product(setting, extractor, asked), extractor.plan)

        def read(out: Path) -> None:
            found = probing.by_layer(
                ActivationStore.open(out), loaded.tokenizer, config.vocab_size, config.num_hidden_layers, plan.seed
            )
            say("note", dict(probe=found))

        say(
            "trial",
            passes.timed(rung, PROBED, guard, read, order=0, seed=plan.seed, phase="cold", **identity).model_dump(),
        )
    return {}
