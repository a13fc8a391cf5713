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
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from llama_jax import prompts, serialised
from llama_jax.checkpoint import load
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, memory, passages, phases, protocol
from llama_lab.bench.cold import Start, as_first, noting, subject
from llama_lab.bench.guard import Guard
from llama_lab.bench.job import Job, check, opened, watched, whole
from llama_lab.bench.journal import Journal
from llama_lab.bench.order import shuffled
from llama_lab.bench.record import Trial
from llama_lab.bench.workload import Subject, Workload

WAYS = ("cold", "cached", "serialised")
START, WARM = "start", "warm"


def record(
    journal: Journal,
    ways: Sequence[tuple[str, str]],
    placements: Sequence[str],
    *,
    model: str,
    seed: int,
    starts: int,
    new_tokens: int,
    blocks: int,
    warm_processes: int,
) -> tuple[list[Start], dict]:
    """First requests of fresh processes, one for each of `ways` in each of `starts` blocks, and warm answers of
    `placements`. Raises UserError where an answer exceeds the model's context."""
    loaded = load(model)
    workload = passages.science(loaded, prompts.load(1), new_tokens, seed)
    passages.check_context(loaded.config, workload)
    job = Job(model, workload, journal)
    first(job, ways, starts, seed)
    warm(job, placements, "step", blocks, warm_processes)
    return judged(journal.trials), dict(baseline="step")


def first(job: Job, ways: Sequence[tuple[str, str]], processes: int, seed: int = 0) -> None:
    """One first request for each (placement, way) in each of `processes` blocks, in random order, each in a fresh
    process.

    way: one of `WAYS`. What cached and serialised starts find on disk is made first, once a placement, by a process of
    its own.
    """
    check(processes=processes)
    for name, way in ways:
        if way not in WAYS:
            raise UserError(f"{way!r} is no way to start {name}; it must be one of {', '.join(WAYS)}.")
        if way == "serialised" and not {"step", "decode"} & parse(name).outermost:
            raise UserError(f"The programs of {name} cannot be serialised: name a placement that jits step or decode.")
        parse(name)
    with tempfile.TemporaryDirectory() as folder:
        for block in range(processes):
            for order, (name, way) in enumerate(shuffled(ways, seed, block)):
                job.progress(f"{way} start of {name}", block * len(ways) + order, processes * len(ways))
                start(job, Path(folder) / name, name, way, block, order, seed)


def start(job: Job, home: Path, name: str, way: str, block: int, order: int, seed: int) -> None:
    """One of them, unless the journal has it."""
    run = f"{START} {name} {way}"
    if any(t.run == run and t.block == block for t in job.journal.trials):
        return
    if way != "cold" and not home.exists():
        # it says no row
        job.child(f"fill {name}", block, f"{__name__}:fill", 1, cache=home, placement=name, home=str(home))
    job.child(
        run,
        block,
        f"{__name__}:first_request",
        1,
        cache=home if way == "cached" else None,
        placement=name,
        phase=way,
        home=str(home),
        order=order,
        seed=seed,
        started=time.time_ns(),
    )


def warm(job: Job, names: Sequence[str], baseline: str, blocks: int, processes: int = 1) -> None:
    """Answers of all placements, interleaved, the baseline twice in each block; `blocks` blocks in each process."""
    check(blocks=blocks, processes=processes)
    if job.workload.new_tokens < 2:
        raise UserError("new_tokens is 1; a rate needs 2 or more.")
    if baseline not in names:
        raise UserError(f"The baseline {baseline!r} is not among the placements ({', '.join(names)}).")
    for p in range(processes):
        numbers = list(range(p * blocks, (p + 1) * blocks))
        job.progress("rates of warm placements", p, processes)
        job.child(
            WARM,
            numbers[-1],
            f"{__name__}:interleaved",
            len(names) + 1,
            placements=list(names),
            blocks=numbers,
            baseline=baseline,
        )


# What the children run ------------------------------------------------------------------------------------------------


def fill(say: Callable, job: dict, identity: dict, placement: str, home: str) -> dict:
    """Put a placement's programs into this process's persistent cache, then into a file."""
    with watched(say):
        loaded, _, workload, _ = opened(job)
        for name in (placement, f"{placement}+aot"):
            who, engine = subject(loaded, name)
            deque(who.run(who.encode(workload.prompts[0]), workload), maxlen=0)
        serialised.save(engine, file_in(home))
    return {}


def first_request(
    say: Callable, job: dict, identity: dict, placement: str, phase: str, home: str, order: int, seed: int, started: int
) -> dict:
    """The first request of this process; `started` is when its parent began to start it, in ns of the system's
    clock."""
    imported = time.time_ns() - started
    with watched(say):
        loaded, _, workload, load_ns = opened(job)
        with Guard() as guard:
            began = time.perf_counter_ns()
            who, _ = subject(loaded, placement, file_in(home) if phase == "serialised" else None)
            bind_ns = time.perf_counter_ns() - began
            first: dict[str, int] = {}
            who = replace(who, run=noting(who.run, guard, first, started))
            record, _ = protocol.trial(who, workload, 0, **identity, order=order, phase=phase)
        row = as_first(record, wrong_start(record, phase, guard), seed=seed)
        own = dict(load_ns=load_ns, imports_ns=imported, bind_ns=bind_ns, **first)
        say("trial", Start(**{**row.model_dump(), **own}).model_dump())
    return {}


def interleaved(
    say: Callable, job: dict, identity: dict, placements: list[str], blocks: list[int], baseline: str
) -> dict:
    """Warm trials of all placements, each with the sizes of its decode program."""
    with watched(say):
        loaded, _, workload, _ = opened(job)
        subjects = [protocol.subject(loaded, parse(name)) for name in placements]
        sizes = {who.name: program_sizes(who, workload) for who in subjects}

        def keep(trial: Trial) -> None:
            say("trial", Start(**{**trial.model_dump(), **sizes[trial.subject.removesuffix(AGAIN)]}).model_dump())

        del identity["block"]
        caller = protocol.Caller(identity | {"phase": WARM}, keep, locked=True)
        protocol.measure(subjects, workload, blocks, protocol.Reference(loaded, workload), baseline, caller)
    return {}


def file_in(home: str) -> Path:
    return Path(home) / "executables.bin"


def wrong_start(record: Trial, phase: str, guard: Guard) -> str:
    """Why a start was not what it should have been, or nothing."""
    if phase == "cached" and (record.compiled or not record.cache_hits):
        return f"not cached: {record.compiled} programs compiled, {record.cache_hits} read"
    if phase == "cold" and (record.cache_hits or not record.compiled):
        return f"not cold: {record.compiled} programs compiled, {record.cache_hits} read"
    if phase == "serialised" and (guard.fired or guard.count("trace")):
        return (
            f"not only read: {guard.count('trace')} traced, {guard.count('lower')} lowered,"
            f" {guard.count('backend')} compiled"
        )
    return ""


def program_sizes(who: Subject, workload: Workload) -> dict:
    """Sizes of a subject's decode program, from what its first run adds to the programs of this process."""
    before = set(map(id, memory.executables()))
    deque(who.run(who.encode(workload.prompts[0]), workload), maxlen=0)
    new = [memory.analyse(executable) for executable in memory.executables() if id(executable) not in before]
    return protocol.program_sizes(memory.decode_program(filter(None, new), parse(who.placement).outermost))


def judged(trials: Sequence[Start]) -> list[Start]:
    """The last try of each, starts judged by the tokens of the warm trials."""
    return phases.judge_starts(whole(trials))
