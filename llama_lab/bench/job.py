"""A job: measurements in fresh processes, one after the other, each filling its part of one journal.

A measurement is a function of a module, `task(say, job, identity, **arguments)`, that runs in a process of its own and
says its rows as it makes them: `say("trial", row.model_dump())`. `say("progress", [what, done, total])` tells how far
it is.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from llama_jax import checkpoint
from llama_jax.placement import Placement
from llama_jax.plumbing.errors import UserError
from llama_jax.quantise import FORMS
from llama_lab.bench import environment, process, protocol, roofline
from llama_lab.bench.experiment import check_counts as check  # noqa: F401
from llama_lab.bench.experiment import run_child, whole  # noqa: F401
from llama_lab.bench.journal import Journal
from llama_lab.bench.progress import Progress, announce
from llama_lab.bench.workload import Subject, Workload


@dataclass(frozen=True)
class Job:
    """What the measurements of one journal share. workload: None where a task makes its own."""

    model: str
    workload: Workload | None
    journal: Journal
    progress: Progress = announce
    limit: float = process.LIMIT_S
    dtype: str = "float32"

    def child(
        self,
        run: str,
        block: int,
        task: str,
        expected: int,
        model: str | None = None,
        cache: Path | None = None,
        threads: int | None = None,
        interpreter: process.Interpreter = process.HERE,
        **arguments,
    ) -> dict:
        """One process of a run, unless one has left all its rows in the journal; returns what its task returned.

        task: `module:function`. expected: rows it makes. model: another one than the job's. cache: folder of the
        persistent compilation cache, none by default. interpreter: another Python than this one. Raises UserError when
        it dies.
        """
        made = Counter(t.process for t in self.journal.trials if t.run == run and t.block == block)
        if max(made.values(), default=0) >= expected:
            return {}
        work = self.workload and asdict(self.workload)
        job = dict(model=model or self.model, dtype=self.dtype, placements=[], workload=work)
        identity = dict(run=run, block=block, process=self.journal.next_process())

        def heard(kind: str, value) -> None:
            if kind == "progress":
                self.progress(*value)

        asked = dict(job=job, identity=identity, **arguments)
        with protocol.alone() as lock:
            how = dict(limit=self.limit, threads=threads, cache=cache, interpreter=interpreter)
            outcome = run_child(self.journal, lock, task, asked, heard, **how)
        if not outcome.ok:
            raise UserError(f"A measuring process ({run}) failed: {outcome.reason}")
        return outcome.result


# For the child --------------------------------------------------------------------------------------------------------


def opened(job: dict) -> tuple[checkpoint.Checkpoint, list[Placement], Workload | None, int]:
    """(checkpoint, placements, workload, nanoseconds to load) of a child's job."""
    import jax

    began = time.perf_counter_ns()
    placements = [Placement(**p) for p in job["placements"]]
    loaded = checkpoint.load(job["model"], form(job["model"], job["dtype"], [] if job.get("peers") else placements))
    jax.block_until_ready(loaded.params)
    spent = time.perf_counter_ns() - began
    workload = job["workload"] and Workload.from_json(job["workload"])
    return loaded, placements, workload, spent


def form(model: str, dtype: str, placements: Sequence[Placement]) -> str:
    """The dtype to load a model in: the one quantised form that all placements want, so that their process never holds
    float weights."""
    wanted = {weights_of(model, p) for p in placements}
    return wanted.pop() if len(wanted) == 1 and wanted <= set(FORMS) else dtype


def weights_of(model: str, placement: Placement) -> str:
    """The form of weights that a placement computes on: kernels that are to take what was loaded take the file's own
    blocks."""
    if placement.weights == "loaded" and placement.kernels != "none":
        return checkpoint.own_blocks(checkpoint.find(model))
    return placement.weights


@contextlib.contextmanager
def watched(say: Callable) -> Iterator[dict]:
    """Say afterwards what else the machine did meanwhile, what this process was given, and what was put into the
    dictionary."""
    more: dict = {}
    with environment.Watch() as watch:
        yield more
    say(
        "note",
        dict(
            watch=watch.result,
            affinity=process.allowed_cores(),
            blas=environment.blas_threads(),
            settings=environment.settings(),
            **more,
        ),
    )


def judging(say: Callable, workload: Workload, loaded: checkpoint.Checkpoint, identity: dict) -> Callable:
    """timed(who, prompt, **more): one gated trial, said at once, beside the bandwidth that this process read at its
    start."""
    reference, bandwidth = protocol.Reference(loaded, workload), roofline.Probe().bandwidth()

    def timed(who: Subject, prompt: int, **more) -> None:
        record, tokens = protocol.trial(who, workload, prompt, **identity, **more)
        judged = reference.judge(record, tokens)
        say("trial", judged.model_copy(update=dict(bandwidth_gbps=bandwidth)).model_dump())

    return timed
