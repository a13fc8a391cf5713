"""From process start to the first token, and what a token costs afterwards: the two sides of what compiling pays.

Three ways to have a program, one `phase` each in the table:

cold        nothing on disk: traced, lowered and compiled by the first request
cached      the same, with XLA's part read from JAX's persistent cache; tracing and lowering are paid again
serialised  executables read from a file (`llama_jax.serialised`): nothing is traced, lowered or compiled

A start is one request of a fresh process, timed from the moment its parent decides to start it. The rates afterwards
are warm trials, all placements interleaved in one process (`phase` warm).
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from llama_jax import prompts, serialised
from llama_jax.checkpoint import load
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, memory, passages, phases, protocol
from llama_lab.bench.cold import Start, as_first, noting, subject
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts
from llama_lab.bench.guard import Guard
from llama_lab.bench.lab import Lab
from llama_lab.bench.record import Trial
from llama_lab.bench.workload import Subject, Workload, blocks

WAYS = ("cold", "cached", "serialised")
START, WARM, BASELINE = "start", "warm", "step"
RATES = "rates of warm placements"


@dataclass(frozen=True)
class Starts(Experiment):
    """First requests of fresh processes, one for each of `ways` in each of `starts` blocks, in random order; and warm
    answers of `placements`, interleaved, `blocks` of them in each of `warm_processes`.

    ways: (placement, one of `WAYS`) each. What cached and serialised starts find on disk is made first, once a
    placement, by a process of its own.
    """

    kind = Start
    beside = ("ways", "placements")

    ways: tuple[tuple[str, str], ...]
    placements: tuple[str, ...]
    model: str
    seed: Seed
    starts: int
    new_tokens: int
    blocks: int
    warm_processes: int

    @property
    def also(self) -> object:
        return self.ways, self.placements

    def check(self) -> None:
        check_counts(starts=self.starts, blocks=self.blocks, warm_processes=self.warm_processes)
        for name, way in self.ways:
            if way not in WAYS:
                raise UserError(f"{way!r} is not a way to start {name}; it must be one of {', '.join(WAYS)}.")
            if way == "serialised" and not {"step", "decode"} & parse(name).outermost:
                raise UserError(
                    f"The programs of {name} cannot be serialised: name a placement that jits step or decode."
                )
            parse(name)
        if self.new_tokens < 2:
            raise UserError(f"new_tokens is {self.new_tokens}; a rate needs 2 or more.")
        if BASELINE not in self.placements:
            raise UserError(f"The baseline {BASELINE!r} is not among the placements ({', '.join(self.placements)}).")

    def measure(self, runner: Runner) -> tuple[list[Start], dict]:
        loaded = load(self.model)
        workload = passages.science(loaded, prompts.load(1), self.new_tokens, self.seed)
        passages.check_context(loaded.config, workload)
        with tempfile.TemporaryDirectory() as folder:
            for i, (block, order, (name, way)) in enumerate(blocks(self.ways, self.starts, self.seed)):
                runner.progress(f"{way} start of {name}", i, self.starts * len(self.ways))
                self.start(runner, workload, Path(folder) / name, block, order, name, way)
        runner.run(self.warm(workload))
        return phases.judge_starts(runner.rows), dict(baseline=BASELINE)

    def start(self, runner: Runner, work: Workload, home: Path, block: int, order: int, name: str, way: str) -> None:
        """One start, unless the journal has it."""
        run = f"{START} {name} {way}"
        if runner.has(run, block):
            return
        asked = dict(placement=name, home=str(home))
        if way != "cold" and not home.exists():  # it leaves no row
            runner.child(Point(f"fill {name}", block, fill, 1, asked, workload=work, cache=home))
        asked |= dict(phase=way, order=order, seed=self.seed, started=time.monotonic_ns())
        cache = home if way == "cached" else None
        runner.child(Point(run, block, first_request, 1, asked, workload=work, cache=cache))

    def warm(self, work: Workload) -> list[Point]:
        """Answers of all placements, interleaved, the baseline twice in each block."""
        names, rows = list(self.placements), len(self.placements) + 1
        shares = [list(range(p * self.blocks, (p + 1) * self.blocks)) for p in range(self.warm_processes)]
        return [
            Point(WARM, numbers[-1], interleaved, rows, dict(placements=names, blocks=numbers), RATES, workload=work)
            for numbers in shares
        ]


# What the children run ------------------------------------------------------------------------------------------------


def fill(lab: Lab, placement: str, home: str) -> None:
    """Put a placement's programs into this process's persistent cache, then into a file."""
    loaded = lab.load()
    for name in (placement, f"{placement}+aot"):
        placed, engine = subject(loaded, name)
        deque(placed.run(placed.encode(lab.workload.prompts[0]), lab.workload), maxlen=0)
    serialised.save(engine, file_in(home))


def first_request(lab: Lab, placement: str, phase: str, home: str, order: int, seed: int, started: int) -> None:
    """The first request of this process. started: when its parent began to start it, ns of the monotonic clock."""
    imported = time.monotonic_ns() - started  # a clock that all processes share and that nobody sets
    loaded = lab.load()
    with Guard() as guard:
        began = time.perf_counter_ns()
        placed, _ = subject(loaded, placement, file_in(home) if phase == "serialised" else None)
        bind_ns = time.perf_counter_ns() - began
        first: dict[str, int] = {}
        placed = replace(placed, run=noting(placed.run, guard, first, started))
        record, _ = lab.trial(placed, lab.workload, 0, order=order, phase=phase)
    row = as_first(record, wrong_start(record, phase, guard), seed=seed)
    own = dict(load_ns=lab.load_ns, imports_ns=imported, bind_ns=bind_ns, **first)
    lab.keep(Start(**{**row.model_dump(), **own}))


def interleaved(lab: Lab, placements: list[str], blocks: list[int]) -> None:
    """Warm trials of all placements, each with the sizes of its decode program."""
    loaded = lab.load()
    subjects = [protocol.subject(loaded, parse(name)) for name in placements]
    sizes = {placed.name: program_sizes(placed, lab.workload) for placed in subjects}

    def keep(trial: Trial) -> None:
        lab.keep(Start(**{**trial.model_dump(), **sizes[trial.subject.removesuffix(AGAIN)]}))

    lab.blocks(subjects, blocks, BASELINE, protocol.Reference(loaded, lab.workload), keep)


def file_in(home: str) -> Path:
    return Path(home) / "executables.bin"


def wrong_start(record: Trial, phase: str, guard: Guard) -> str:
    """Why a start was not what it should have been, or nothing."""
    compiled, read = record.compiled, record.cache_hits
    if (phase == "cached" and (compiled or not read)) or (phase == "cold" and (read or not compiled)):
        return f"not {phase}: {compiled} programs compiled, {read} read"
    if phase == "serialised" and (guard.fired or guard.count("trace")):
        traced, lowered, backend = (guard.count(kind) for kind in ("trace", "lower", "backend"))
        return f"not only read: {traced} traced, {lowered} lowered, {backend} compiled"
    return ""


def program_sizes(placed: Subject, workload: Workload) -> dict:
    """Sizes of a subject's decode program, from what its first run adds to the programs of this process."""
    before = set(map(id, memory.executables()))
    deque(placed.run(placed.encode(workload.prompts[0]), workload), maxlen=0)
    new = [memory.analyse(executable) for executable in memory.executables() if id(executable) not in before]
    return protocol.program_sizes(memory.decode_program(filter(None, new), parse(placed.placement).outermost))
