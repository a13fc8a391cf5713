"""Weights in fewer bits, and kernels, beside llama.cpp and PyTorch on the same weights: rate, memory, and what
compiling kernels costs.

Rows of three kinds, by `run`:

context N      answers after which N tokens stand in the cache, all subjects interleaved
memory NAME    one answer in a process that holds nothing but its subject: peak resident memory (`phase` cold)

and one note per process of `kernels cold` and `kernels cached`: seconds until the kernels can be called, compiled or
read from the disk.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from llama_jax import checkpoint
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import available, footprints, passages, summary
from llama_lab.bench import run as suite
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts
from llama_lab.bench.lab import Lab
from llama_lab.bench.phases import Plan
from llama_lab.bench.record import Trial

KERNELS, WAYS = "kernels", ("cold", "cached")


@dataclass(frozen=True)
class Contest(Experiment):
    """What is measured. The first placement is the baseline, which runs twice in each block.

    contexts: tokens of prompt and answer together, `new_tokens` of them made. starts: processes per subject for memory,
    and of each way to come by the kernels.
    """

    model: str
    placements: tuple[str, ...]
    peers: tuple[str, ...]
    contexts: tuple[int, ...]
    new_tokens: int
    blocks: int
    processes: int
    starts: int
    seed: Seed

    def check(self) -> None:
        from llama_lab import peers

        peers.check(self.peers)
        if not self.placements or not self.contexts:
            raise UserError("No placement or no context is named; name one or more of each.")
        names = [parse(name).name for name in self.placements]
        if len(set(names)) < len(names):
            raise UserError(f"A placement is named twice: {', '.join(names)}.")
        available.check_baseline(names[0])
        check_counts(blocks=self.blocks, processes=self.processes, starts=self.starts)
        passages.check_contexts(self.model, self.contexts, self.new_tokens)

    def measure(self, runner: Runner) -> tuple[list[Trial], dict]:
        here, loaded = runner.present((*self.placements, *self.peers)), checkpoint.load(self.model)
        works = {n: passages.filling(loaded, n, self.new_tokens, self.seed) for n in self.contexts}
        answered: list[Trial] = []
        for context, work in works.items():
            counts = dict(blocks=self.blocks, processes=self.processes)
            plan = Plan.of(self.model, here, work, run=f"context {context}", **counts)
            answered += suite.collect(plan, runner.journal, runner.progress)
        able = [name for name in here if summary.warm(answered, name)]  # not those that failed above
        runner.run(footprints.points(able, self.starts, works[min(works)]))
        if any(available.needs_kernels(name) for name in here):
            self.compile_kernels(runner)
        alone = [t for t in runner.rows if t.run.startswith(footprints.MEMORY)]
        absent = {gap["name"] for gap in runner.missing}
        return answered + alone, dict(
            weights_hash=loaded.weights_hash,
            baseline=self.placements[0],
            missing=runner.missing,
            file_bytes=footprints.file_bytes(loaded),
            subjects=[name for name in here if name not in absent],
            text="English" if loaded.tokenizer else "random ids",
        )

    def compile_kernels(self, runner: Runner) -> None:
        """`starts` times: a process that compiles the kernels into an empty folder, and one that finds them there."""
        done = {(note[KERNELS]["way"], note[KERNELS]["block"]) for note in runner.journal.notes if KERNELS in note}
        for block in range(self.starts):
            if all((way, block) in done for way in WAYS):
                continue
            with tempfile.TemporaryDirectory() as folder:  # which the first process fills for the second
                for way in WAYS:
                    runner.progress(f"kernels, {way}", block, self.starts)
                    asked = dict(folder=folder, way=way)
                    runner.child(Point(f"{KERNELS} {way}", block, kernels_ready, 1, asked))


def kernels_ready(lab: Lab, folder: str, way: str) -> None:
    """Seconds from JAX imported to the kernels callable, with the user's cache in `folder`: said in the note."""
    os.environ["LLAMA_JAX_CACHE"] = folder
    before = list(Path(folder).rglob("*"))
    start = time.perf_counter()
    from llama_jax.kernels import build, isa

    build.library()
    seconds = time.perf_counter() - start
    lab.notes[KERNELS] = dict(way=way, block=lab.block, seconds=seconds, isa=isa.target().isa, found=bool(before))
