"""How fast activations of a text get onto the disk, one improvement at a time: the ladder of `rungs`, measured.

Tokens/s are non-padding tokens over the seconds from the text to the last fsync. In one process every rung first makes
a first pass, in which it may compile (`phase` is `cold`), then passes over the same text in interleaved blocks
(`warm`), in which it may not: a pass in which anything was compiled is void. Whatever a pass leaves on the disk is read
back and held against the model run op by op in float32: a rung that wrote other values has no time.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_jax.checkpoint import Checkpoint, load, load_config
from llama_jax.config import ModelConfig
from llama_lab.activations.program import Extractor
from llama_lab.activations.reading import ActivationStore
from llama_lab.activations.spec import ActivationSpec
from llama_lab.bench import AGAIN, protocol
from llama_lab.bench.experiment import Experiment, Point, Runner
from llama_lab.bench.guard import Guard
from llama_lab.bench.lab import Lab
from llama_lab.bench.workload import blocks
from llama_lab.experiments.activation_extraction import command, probing, rungs
from llama_lab.experiments.activation_extraction.gate import Reference
from llama_lab.experiments.activation_extraction.passes import Passes, budget, scaled_row
from llama_lab.experiments.activation_extraction.pipeline import (
    Example,
    Setting,
    product,
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
from llama_lab.experiments.activation_extraction.rungs import BASE, Rung

FEWER = 8  # the second model is given this part of the examples


@dataclass(frozen=True)
class Extractions(Experiment, Plan):
    """All passes of a plan: rungs in one process, a linear probe, and `llama-jax extract --processes N`."""

    kind = Extraction
    beside = ("subjects",)

    model: str = ""

    def check(self) -> None:
        check_plan(self, load_config(self.model))

    def measure(self, runner: Runner) -> tuple[list[Extraction], dict]:
        loaded = load(self.model)
        gaps = [gap for gap in rungs.missing(self.model) if gap["name"] in self.subjects]
        asked = examples_of(loaded, self.examples, self.length, self.seed)
        scratch = Path(runner.journal.path.parent if runner.journal.path else tempfile.gettempdir())
        runner.run(self.extracting(loaded, asked, [gap["name"] for gap in gaps], scratch))
        if self.scaling:
            self.run_scaling(runner, loaded, asked, scratch)
        return runner.rows, dict(missing=gaps, text="English" if loaded.tokenizer else "random ids")

    def extracting(
        self, loaded: Checkpoint, asked: Sequence[Example], missing: Sequence[str], scratch: Path
    ) -> list[Point]:
        """The ladder's processes, those of the second model, and the probe's. missing: subjects that cannot run."""
        names, found = [name for name in self.subjects if name not in missing], []
        second = [name for name in names if name in OF_SECOND] if self.second else []
        for run, model, of_model in ((LADDER, self.model, names), (SECOND, self.second, second)):
            texts = asked if run == LADDER else random_ids(load_config(model), self) if of_model else []
            for p in range(self.processes if of_model else 0):
                numbers = list(range(p * self.blocks, (p + 1) * self.blocks))
                rows = len(of_model) + (BASE in of_model)
                share = dict(names=of_model, blocks=numbers, asked=texts, scratch=str(scratch))
                found.append(Point(run, numbers[-1], self.ladder, rows, share, model=model))
        if self.probe:
            sample = examples_of(loaded, self.probe, self.length, self.seed + 1)
            found.append(Point(PROBE, 0, self.probing, 1, dict(asked=sample, scratch=str(scratch))))
        return found

    def run_scaling(self, runner: Runner, loaded: Checkpoint, asked: Sequence[Example], scratch: Path) -> None:
        """`llama-jax extract --processes N` over the same examples, each number of processes `starts` times, in seeded
        random order.

        The time is the run's own: starting Python, loading the weights and compiling come before it, in each process.
        """
        passes = self.passes(loaded, asked, scratch)
        for i, (block, order, workers) in enumerate(blocks(self.scaling, self.starts, self.seed, SCALING)):
            run = f"{SCALING} {workers}"
            if runner.has(run, block):
                continue
            runner.progress(f"processes: {workers}", i, self.starts * len(self.scaling))
            with tempfile.TemporaryDirectory(dir=scratch) as folder, protocol.alone():
                report, why = self.by_command(runner, loaded, asked, workers, Path(folder))
                process = runner.journal.next_process()
                identity = dict(run=run, block=block, order=order, process=process, seed=self.seed, phase="warm")
                row = scaled_row(passes, workers, report, why, Path(folder) / "store", identity)
                runner.journal.append(row)

    def by_command(
        self, runner: Runner, loaded: Checkpoint, asked: Sequence[Example], workers: int, folder: Path
    ) -> tuple[dict, str]:
        """(the report of `llama-jax extract --json`, "") or ({}, why there is none)."""
        layers = ",".join(map(str, rungs.quarter(loaded.config.num_hidden_layers)))
        options = dict(
            model=self.model,
            source=command.write_source(folder / "examples.jsonl", list(asked)),
            sites=f"resid_post:{layers}",
            out=folder / "store",
            keep=self.dtype,
            dtype="float32",
            batch=self.batch,
            length=self.length,
            unit=self.unit,
            processes=workers,
        )
        report, why, _ = command.extracted(options, runner.limit)
        return report, why

    def setting(self, loaded: Checkpoint) -> Setting:
        return Setting(loaded, self.batch, self.length, self.unit, self.dtype)

    def passes(self, loaded: Checkpoint, asked: Sequence[Example], scratch: Path) -> Passes:
        reference = Reference(loaded, asked[: self.eager])
        return Passes(self.setting(loaded), asked, self.eager, scratch, reference)

    def ladder(self, lab: Lab, names: list, blocks: list, asked: list, scratch: str) -> None:
        """A first pass of every rung, then the blocks: every rung once and the denominator twice, in seeded random
        order."""
        run, where = lab.identity["run"], dict(process=lab.identity["process"], seed=self.seed)
        loaded = lab.load()
        passes, made = self.passes(loaded, asked, Path(scratch)), {}
        for order, name in enumerate(names):
            lab.progress(f"first pass: {name}", order, len(names))
            made[name], row = passes.first(name, run=run, block=blocks[0], order=order, phase="cold", **where)
            lab.keep(row)
        for i, block in enumerate(blocks):
            drawn = [*names, *[BASE + AGAIN] * (BASE in names)]
            random.Random(f"{self.seed} {run} {block}").shuffle(drawn)
            for order, name in enumerate(drawn):
                lab.progress(f"block {block + 1}: {name}", i * len(drawn) + order, len(blocks) * len(drawn))
                place = dict(run=run, block=block, order=order, phase="warm", **where)
                lab.keep(passes.timed(made[name.removesuffix(AGAIN)], name, **place))
        if run == LADDER and blocks[0] == 0:
            lab.progress("budget of a batch", 0, 1)
            lab.note(budget=budget(passes.setting, asked, len(blocks), scratch))

    def probing(self, lab: Lab, asked: list, scratch: str) -> None:
        """Every layer of a sample through `extract`; a note says what a linear probe reads in the store
        (`probing.by_layer`)."""
        loaded = lab.load()
        config, passes = loaded.config, self.passes(loaded, asked, Path(scratch))
        lab.progress("every layer, for the linear probe", 0, 1)
        with Guard() as guard:
            spec = ActivationSpec(probing.SITES, dtype=self.dtype)
            extractor = Extractor(loaded, spec, (self.batch, self.length))
        rung = Rung(PROBED, extractor.sites, product(passes.setting, extractor, asked), extractor.plan)

        def read(out: Path) -> None:
            layers = config.num_hidden_layers
            store = ActivationStore.open(out)
            lab.note(probe=probing.by_layer(store, loaded.tokenizer, config.vocab_size, layers, self.seed))

        place = dict(order=0, seed=self.seed, phase="cold", **lab.identity)
        lab.keep(passes.timed(rung, PROBED, guard, read, **place))


# What the children run ------------------------------------------------------------------------------------------------


def random_ids(config: ModelConfig, plan: Plan) -> list[Example]:
    """Examples for the second model, whose tokenizer is not here; fewer, since it is larger."""
    nobody, count = Checkpoint("", config, None, None, "", "", ""), max(plan.unit, plan.examples // FEWER)
    return examples_of(nobody, count, plan.length, plan.seed)
