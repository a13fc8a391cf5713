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
from llama_jax.plumbing.errors import UserError, near
from llama_lab.activations.program import Extractor
from llama_lab.activations.reading import ActivationStore
from llama_lab.activations.spec import DTYPES, ActivationSpec
from llama_lab.bench import AGAIN, protocol
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts
from llama_lab.bench.guard import Guard
from llama_lab.bench.lab import Lab
from llama_lab.bench.workload import blocks
from llama_lab.experiments.activation_extraction import probing, rungs, workers
from llama_lab.experiments.activation_extraction.passes import (
    LADDER,
    PROBE,
    SCALING,
    SECOND,
    Extraction,
    Passes,
    Reference,
    budget,
)
from llama_lab.experiments.activation_extraction.pipeline import SHORTEST, Example, Setting, examples_of, product
from llama_lab.experiments.activation_extraction.rungs import BASE, CUT, FIRST, PRODUCT, SUBJECTS, TORCH, Rung

PROBED = "every layer"
OF_SECOND = (BASE, FIRST, PRODUCT, TORCH, CUT)
FEWER = 8  # the second model is given this part of the examples


@dataclass(frozen=True)
class Extractions(Experiment):
    """All passes: rungs in one process, a linear probe, and `llama-jax extract --processes N`.

    batch, length: rows and tokens of a batch. unit: examples of a shard. examples: of the source; eager: of them for
    N0, and for the check of values. blocks: passes of each rung in a process. scaling: numbers of processes; starts:
    runs of each. probe: examples for the linear probe, none for 0. second: a model that fewer rungs (`OF_SECOND`) are
    measured on as well; "" for none.
    """

    kind = Extraction
    beside = ("subjects",)

    batch: int = 8
    length: int = 128
    unit: int = 24
    examples: int = 48
    eager: int = 3
    blocks: int = 3
    processes: int = 1
    scaling: tuple[int, ...] = (1, 2)
    starts: int = 2
    probe: int = 60
    second: str = ""
    seed: Seed = 0
    dtype: str = "bfloat16"
    subjects: tuple[str, ...] = SUBJECTS
    model: str = ""

    def check(self) -> None:
        config = load_config(self.model)
        names = ("batch", "unit", "examples", "eager", "blocks", "processes", "starts")
        scaling = {f"scaling[{i}]": n for i, n in enumerate(self.scaling)}
        check_counts(**{name: getattr(self, name) for name in names}, **scaling)
        longest = config.max_position_embeddings
        if not SHORTEST <= self.length <= longest:
            raise UserError(f"length is {self.length}; it must be {SHORTEST} to {longest}, the model's context.")
        if self.eager > self.examples:
            raise UserError(f"eager is {self.eager}; there are {self.examples} examples.")
        if self.probe and self.probe < probing.FOLDS:
            raise UserError(f"probe is {self.probe}; it must be 0, or {probing.FOLDS} examples or more.")
        if config.num_hidden_layers < 2:
            raise UserError("The model has one layer, of which no quarter can be selected; name another.")
        if self.dtype not in DTYPES:
            raise UserError(f"dtype is {self.dtype!r}; activations are kept as {', '.join(DTYPES)}.")
        if unknown := [name for name in self.subjects if name not in SUBJECTS]:
            raise UserError(f"No such way of extracting: {unknown[0]!r}.{near(unknown[0], SUBJECTS)}")

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
        names, points = [name for name in self.subjects if name not in missing], []
        second = [name for name in names if name in OF_SECOND] if self.second else []
        for run, model, of_model in ((LADDER, self.model, names), (SECOND, self.second, second)):
            texts = asked if run == LADDER else self.random_ids() if of_model else []
            for p in range(self.processes if of_model else 0):
                numbers = list(range(p * self.blocks, (p + 1) * self.blocks))
                rows = len(of_model) + (BASE in of_model)
                share = dict(names=of_model, blocks=numbers, asked=texts, scratch=str(scratch))
                points.append(Point(run, numbers[-1], self.ladder, rows, share, model=model))
        if self.probe:
            sample = examples_of(loaded, self.probe, self.length, self.seed + 1)
            points.append(Point(PROBE, 0, self.probing, 1, dict(asked=sample, scratch=str(scratch))))
        return points

    def random_ids(self) -> list[Example]:
        """Examples for the second model, whose tokenizer is not here; fewer, since it is larger."""
        nobody = Checkpoint("", load_config(self.second), None, None, "", "", "")
        return examples_of(nobody, max(self.unit, self.examples // FEWER), self.length, self.seed)

    def run_scaling(self, runner: Runner, loaded: Checkpoint, asked: Sequence[Example], scratch: Path) -> None:
        """`llama-jax extract --processes N` over the same examples, each number of processes `starts` times, in seeded
        random order.

        The time is the run's own: starting Python, loading the weights and compiling come before it, in each process.
        """
        passes = self.passes(loaded, asked, scratch)
        shape = dict(batch=self.batch, length=self.length, unit=self.unit)
        options = shape | dict(model=self.model, sites=rungs.sites_of(loaded), keep=self.dtype, dtype="float32")
        for i, (block, order, count) in enumerate(blocks(self.scaling, self.starts, self.seed, SCALING)):
            run = f"{SCALING} {count}"
            if runner.has(run, block):
                continue
            runner.progress(f"processes: {count}", i, self.starts * len(self.scaling))
            with tempfile.TemporaryDirectory(dir=scratch) as folder, protocol.alone():
                own = options | dict(processes=count)
                report, why, _ = workers.extracted(asked, Path(folder), own, runner.limit)
                process = runner.journal.next_process()
                identity = dict(run=run, block=block, order=order, process=process, seed=self.seed, phase="warm")
                runner.journal.append(passes.by_command(count, report, why, Path(folder) / "store", **identity))

    def passes(self, loaded: Checkpoint, asked: Sequence[Example], scratch: Path) -> Passes:
        setting = Setting(loaded, self.batch, self.length, self.unit, self.dtype)
        return Passes(setting, asked, self.eager, scratch, Reference(loaded, asked[: self.eager]))

    # What the children run

    def ladder(self, lab: Lab, names: list, blocks: list, asked: list, scratch: str) -> None:
        """A first pass of every rung, then the blocks: every rung once and the denominator twice, in seeded random
        order."""
        run, where = lab.identity["run"], dict(process=lab.identity["process"], seed=self.seed)
        passes, made = self.passes(lab.load(), asked, Path(scratch)), {}
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
            extractor = Extractor(loaded, spec, passes.setting.shape)
        rung = Rung(PROBED, extractor.sites, product(passes.setting, extractor, asked), extractor.plan)

        def read(out: Path) -> None:
            layers = config.num_hidden_layers
            store = ActivationStore.open(out)
            lab.note(probe=probing.by_layer(store, loaded.tokenizer, config.vocab_size, layers, self.seed))

        place = dict(order=0, seed=self.seed, phase="cold", **lab.identity)
        lab.keep(passes.timed(rung, PROBED, guard, read, **place))
