"""Weights in fewer bits, and kernels, beside llama.cpp and PyTorch on the same weights: rate, memory, and what
compiling kernels costs.

Rows of three kinds, by `run`:

context N      answers after which N tokens stand in the cache, all subjects interleaved
memory NAME    one answer in a process that holds nothing but its subject: peak resident memory (`phase` cold)

and a note a process of `kernels cold` and `kernels cached`: seconds until the kernels can be called, compiled or read
from the disk.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llama_jax import checkpoint
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import available, footprints, passages, phases, summary
from llama_lab.bench import run as suite
from llama_lab.bench.job import Job, check, watched, whole
from llama_lab.bench.journal import Journal
from llama_lab.bench.phases import Plan
from llama_lab.bench.record import Trial

KERNELS, WAYS = "kernels", ("cold", "cached")


@dataclass(frozen=True)
class Contest:
    """What is measured. The first placement is the baseline, which runs twice in each block.

    contexts: tokens of prompt and answer together, `new_tokens` of them made. starts: processes a subject for memory,
    and of each way to come by the kernels.
    """

    model: str
    placements: tuple[str, ...]
    peers: tuple[str, ...]
    contexts: tuple[int, ...]
    new_tokens: int
    blocks: int
    processes: int
    starts: int = 1
    seed: int = 0

    def check(self) -> None:
        """Raises UserError for what does not exist or cannot be, before anything is loaded."""
        from llama_lab import peers

        peers.check(self.peers)
        if not self.placements or not self.contexts:
            raise UserError("No placement or no context is named; name one or more of each.")
        names = [parse(name).name for name in self.placements]
        if len(set(names)) < len(names):
            raise UserError(f"A placement is named twice: {', '.join(names)}.")
        available.check_baseline(names[0])
        check(blocks=self.blocks, processes=self.processes, starts=self.starts)
        passages.check_contexts(self.model, self.contexts, self.new_tokens)


def run(contest: Contest, journal: Journal) -> tuple[list[Trial], dict]:
    """Everything: (trials, what the meta file should say of them). What cannot run here is named there (`missing`),
    with its remedy."""
    contest.check()
    gaps = available.gaps((*contest.placements, *contest.peers), contest.model)
    absent = {gap["name"] for gap in gaps}
    here = [name for name in (*contest.placements, *contest.peers) if name not in absent]
    loaded = checkpoint.load(contest.model)
    works = {
        context: passages.filling(loaded, context, contest.new_tokens, contest.seed) for context in contest.contexts
    }
    placements, others = (
        tuple(parse(n) for n in here if n in contest.placements),
        tuple(n for n in here if n in contest.peers),
    )
    answered: list[Trial] = []
    for context, work in works.items():
        plan = Plan(
            contest.model,
            placements,
            work,
            contest.placements[0],
            blocks=contest.blocks,
            processes=contest.processes,
            run=f"context {context}",
            peers=others,
        )
        answered += suite.collect(plan, journal)
    job = Job(contest.model, works[min(works)], journal)
    # not those that failed above
    footprints.memory(job, [name for name in here if summary.warm(answered, name)], contest.starts)
    if any(available.needs_kernels(name) for name in here):
        compile_kernels(job, contest.starts)
    gaps += phases.missing(journal)
    alone = whole([t for t in journal.trials if t.run.startswith(footprints.MEMORY)])
    return answered + alone, dict(
        weights_hash=loaded.weights_hash,
        baseline=contest.placements[0],
        missing=gaps,
        file_bytes=footprints.file_bytes(loaded),
        subjects=[name for name in here if name not in {gap["name"] for gap in gaps}],
        text="English" if loaded.tokenizer else "random ids",
    )


def compile_kernels(job: Job, starts: int) -> None:
    """`starts` times: a process that compiles the kernels into an empty folder, and one that finds them there."""
    done = {(note[KERNELS]["way"], note[KERNELS]["block"]) for note in job.journal.notes if KERNELS in note}
    for block in range(starts):
        with tempfile.TemporaryDirectory() as folder:
            for way in WAYS:  # the second is measured only where the first has just filled the folder
                if all((each, block) in done for each in WAYS):
                    continue
                job.progress(f"kernels, {way}", block, starts)
                job.child(f"{KERNELS} {way}", block, f"{__name__}:kernels_ready", 1, folder=folder, way=way)


# What a child runs ----------------------------------------------------------------------------------------------------


def kernels_ready(say: Callable, job: dict, identity: dict, folder: str, way: str) -> dict:
    """Seconds from JAX imported to the kernels callable, with the user's cache in `folder`: said in a note."""
    os.environ["LLAMA_JAX_CACHE"] = folder
    before = list(Path(folder).rglob("*"))
    with watched(say) as more:
        start = time.perf_counter()
        from llama_jax.kernels import build, isa

        build.library()
        more[KERNELS] = dict(
            way=way,
            block=identity["block"],
            seconds=time.perf_counter() - start,
            isa=isa.target().isa,
            found=bool(before),
        )
    return {}
