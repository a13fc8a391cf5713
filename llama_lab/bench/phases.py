"""The three phases of a program's life, each in fresh processes: cold, cached, warm.

cold    first request of a new process, no compiled program on disk
cached  the same with every program of the placement in JAX's persistent cache
warm    after warm-up, all subjects interleaved in one process; repeated in several processes, because what a process
        draws once (memory layout, thread placement) is luck that all its trials share

Every trial goes to the journal as it is made. A child that dies is a recorded failure; the run goes on without it.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Self

import numpy as np

from llama_jax.placement import Placement, parse
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Sampler
from llama_lab.bench import AGAIN, DIED, SAMPLED, WRONG, gate, process
from llama_lab.bench.available import missing
from llama_lab.bench.experiment import run_child
from llama_lab.bench.journal import Journal
from llama_lab.bench.progress import Progress, announce
from llama_lab.bench.protocol import alone
from llama_lab.bench.record import Trial
from llama_lab.bench.workload import Workload

SUPERSEDED = "its block was cut off and measured again"
PATIENCE = 2  # a subject is left out once this many processes died in it
TASKS = "llama_lab.bench.requests"


@dataclass(frozen=True)
class Plan:
    """What a run measures. blocks are spread evenly over `processes`; `cold` and `cached` are processes a subject.

    peers: names of `peers.PEERS`; one that cannot be built leaves a note in the journal (`missing`) and is left out.
    sampled: each placement is measured under this sampler too, in the same blocks; the workload's is for the others.
    """

    model: str
    placements: tuple[Placement, ...]
    workload: Workload
    baseline: str
    blocks: int = 5
    processes: int = 1
    cold: int = 0
    cached: int = 0
    threads: int | None = None
    explain: bool = False
    limit: float = process.LIMIT_S
    run: str = "main"  # several runs may share a journal and a table
    peers: tuple[str, ...] = ()
    sampled: Sampler | None = None

    @classmethod
    def of(cls, model: str, names: Iterable[str], workload: Workload, baseline: str = "", **more) -> Self:
        """A plan of placements and peers by their names. baseline: the first of them, where none is named."""
        from llama_lab import peers

        names = list(names)
        placements = tuple(parse(name) for name in names if name not in peers.PEERS)
        others = tuple(name for name in names if name in peers.PEERS)
        return cls(model, placements, workload, baseline or names[0], peers=others, **more)

    def asked(self, subjects: Sequence[Placement | str]) -> dict:
        """Some of the subjects, as `requests.Subjects` takes them."""
        placements = [asdict(s) for s in subjects if not isinstance(s, str)]
        return dict(placements=placements, peers=[s for s in subjects if isinstance(s, str)])

    @property
    def subjects(self) -> list[Placement | str]:
        """Placements, and the names of peers."""
        return [*self.placements, *self.peers]


def run(plan: Plan, journal: Journal | None = None, progress: Progress = announce) -> list[Trial]:
    """Everything the plan asks for that the journal does not hold yet; returns all trials, judged as a whole.

    First requests are judged by the warm ones; what is left of a block that was cut off is void where the block was
    measured again. Raises UserError for a mistake in the plan, and when the baseline itself cannot be measured.
    """
    check(plan)
    journal = Journal() if journal is None else journal
    with alone() as lock:
        bench = Bench(plan, journal, progress, lock)
        starts(bench, "cold", plan.cold)
        starts(bench, "cached", plan.cached)
        warm(bench)
    return supersede(judge_starts(bench.trials))


def check(plan: Plan) -> None:
    """Raises UserError for a plan that cannot be carried out."""
    if plan.baseline not in [p.name for p in plan.placements]:
        raise UserError(
            f"The baseline {plan.baseline!r} is not among the subjects ({', '.join(p.name for p in plan.placements)})."
        )
    if plan.blocks < 1 or plan.processes < 1:
        raise UserError(
            f"{plan.blocks} blocks in {plan.processes} processes asked for; there must be at least one of each."
        )
    if plan.processes > plan.blocks:
        raise UserError(f"{plan.processes} processes for {plan.blocks} blocks; each process needs a block of its own.")
    from llama_lab import peers

    peers.check(plan.peers)
    if twice := {p.name for p in plan.placements} & set(plan.peers):
        raise UserError(f"{twice.pop()!r} names both a placement and a peer; give the placement another name.")
    process.check_threads(plan.threads)


class Bench:
    """A plan being carried out: the journal it fills, and the processes it starts."""

    def __init__(self, plan: Plan, journal: Journal, progress: Progress, lock: IO):
        self.plan, self.journal, self.progress, self.lock = plan, journal, progress, lock
        subjects = len(plan.subjects) + (len(plan.placements) if plan.sampled else 0)
        self.total = len(plan.subjects) * (plan.cold + plan.cached) + (subjects + 1) * plan.blocks

    @property
    def trials(self) -> list[Trial]:
        return [t for t in self.journal.trials if t.run == self.plan.run]

    @property
    def missing(self) -> set[str]:
        return {gap["name"] for gap in missing(self.journal)}

    def tell(self, what: str) -> None:
        self.progress(what, min(len(self.trials), self.total), self.total)

    def start(
        self, task: str, identity: dict, arguments: dict, cache: Path | None = None, silent: bool = False
    ) -> tuple[process.Outcome, dict]:
        """One child; its trials go to the journal, unless it is silent. Returns its outcome and the last trial that it
        announced."""
        announced: dict = {}

        def heard(kind: str, value) -> None:
            if kind in ("trial", "starting"):
                announced.clear()
            if kind == "starting":
                announced.update(value)
                self.tell(value["what"])

        journal, plan = None if silent else self.journal, self.plan
        work = dict(identity=identity, model=plan.model, workload=asdict(plan.workload))
        asked = dict(task=f"{TASKS}:{task}", lab=work, arguments=arguments)
        how = dict(limit=plan.limit, threads=plan.threads, cache=cache)
        return run_child(journal, self.lock, asked, heard, **how), announced

    def fail(self, subject: str, reason: str, **identity) -> None:
        """Record a trial that never came to its end."""
        plan, work = self.plan, self.plan.workload
        backend = peer(subject).backend if subject in plan.peers else "jax"
        base = dict(
            run=plan.run,
            seed=work.seed,
            valid=False,
            reason=DIED + reason,
            subject=subject,
            backend=backend,
            placement=subject.removesuffix(AGAIN).removesuffix(SAMPLED),
            model=plan.model,
            weights_hash="",
            dtype="",
            batch=work.batch,
            prompt=0,
            prompt_tokens=0,
            new_tokens=0,
            sampling=str(plan.sampled if subject.endswith(SAMPLED) else work.sampler),
            cache_slots=work.slots,
            token_times_ns=[],
            tokenize_ns=0,
            trace_ns=0,
            lower_ns=0,
            backend_ns=0,
            lowered=0,
            compiled=0,
            cache_hits=0,
            tokens_sha256="",
        )
        self.journal.append(Trial(**{**base, **identity}))


def name_of(subject: Placement | str) -> str:
    return subject if isinstance(subject, str) else subject.name


def peer(name: str):
    """A peer's line in the registry, imported when one is asked for: peers know the protocol, the protocol knows no
    peer."""
    from llama_lab import peers

    return peers.get(name)


def can_be_cached(subject: Placement | str) -> bool:
    """Whether its programs are JAX's, so that the persistent cache can hold them."""
    return not isinstance(subject, str) or peer(subject).jax


def starts(bench: Bench, phase: str, count: int) -> None:
    """`count` first requests of each subject, interleaved, each in a process of its own."""
    plan = bench.plan
    done = {(t.subject, t.block) for t in bench.trials if t.phase == phase}
    wanted = [
        (block, order, s)
        for block in range(count)
        for order, s in enumerate(plan.subjects)
        if (name_of(s), block) not in done and (phase == "cold" or can_be_cached(s))
    ]
    with tempfile.TemporaryDirectory() as folder:
        filled: set[str] = set()
        for block, order, subject in wanted:
            name = name_of(subject)
            if name in bench.missing:
                continue
            home, persistent = Path(folder) / str(order), getattr(subject, "compile", "") == "persistent"
            identity = dict(
                run=bench.plan.run, block=block, order=order, phase=phase, process=bench.journal.next_process()
            )
            prompt = block % len(plan.workload.prompts)
            asked = dict(subjects=plan.asked([subject]), prompt=prompt)
            cache = home if phase == "cached" or persistent else None
            if phase == "cold" and cache:
                cache = home / str(block)  # empty each time
            elif phase == "cached" and name not in filled:
                bench.tell(f"filling the cache for {name}")
                outcome, _ = bench.start("first_request", identity, asked, cache, silent=True)
                if not outcome.ok:
                    bench.fail(name, f"while the cache was filled, {outcome.reason}", **identity, prompt=prompt)
                    continue
                filled.add(name)
            bench.tell(f"{phase} start of {name}")
            outcome, _ = bench.start("first_request", identity, asked, cache)
            if not outcome.ok:
                bench.fail(name, outcome.reason, **identity, prompt=prompt)


def warm(bench: Bench) -> None:
    """The blocks, spread over the plan's processes. A block that was cut off is measured again, whole, in a new
    process."""
    plan = bench.plan
    for group in np.array_split(range(plan.blocks), plan.processes):
        while pending := [int(b) for b in group if not complete(bench, int(b))]:
            before = len(bench.trials)
            identity = dict(run=bench.plan.run, phase="warm", process=bench.journal.next_process())
            subjects = plan.asked(alive(bench))
            if plan.sampled:
                subjects |= dict(sampled=asdict(plan.sampled))
            asked = dict(subjects=subjects, blocks=pending, baseline=plan.baseline, explain=plan.explain)
            outcome, announced = bench.start("interleaved_blocks", identity, asked)
            if outcome.ok:
                break
            if "subject" not in announced:  # between two trials: nobody's fault
                if len(bench.trials) == before:
                    raise UserError(f"The measuring process died before its first trial: {outcome.reason}")
                continue
            bench.fail(
                announced["subject"], outcome.reason, **identity, block=announced["block"], order=announced["order"]
            )
            if plan.baseline not in map(name_of, alive(bench)):
                raise UserError(f"The baseline {plan.baseline!r} cannot be measured: {outcome.reason}")


def alive(bench: Bench) -> list[Placement | str]:
    """The subjects that could be built so far and have not yet cost PATIENCE processes their life."""
    deaths = [t.placement for t in bench.trials if t.phase == "warm" and t.died]
    return [s for s in bench.plan.subjects if deaths.count(name_of(s)) < PATIENCE and name_of(s) not in bench.missing]


def complete(bench: Bench, block: int) -> bool:
    """Whether some process has measured the whole block: only trials of one process, close in time, make a pair."""
    expected = {*map(name_of, alive(bench)), bench.plan.baseline + AGAIN}
    if bench.plan.sampled:
        expected |= {s.name + SAMPLED for s in alive(bench) if not isinstance(s, str)}
    by_process: dict[int, set[str]] = {}
    for t in bench.trials:
        if t.phase == "warm" and t.block == block and not t.died:
            by_process.setdefault(t.process, set()).add(t.subject)
    return any(expected <= found for found in by_process.values())


def judge_starts(trials: Sequence[Trial]) -> list[Trial]:
    """First requests are judged by the warm ones: void where no valid warm trial of that prompt and dtype made the same
    tokens."""
    known: dict[tuple, set[str]] = {}
    for t in trials:
        if t.phase == "warm" and t.valid:
            known.setdefault((t.prompt, t.dtype, t.quantisation, t.sampling, t.new_tokens), set()).add(t.tokens_sha256)

    def judged(t: Trial) -> Trial:
        hashes = known.get((t.prompt, t.dtype, t.quantisation, t.sampling, t.new_tokens))
        if (
            t.phase == "warm"
            or not t.valid
            or gate.approximate(t.quantisation)
            or not hashes
            or t.tokens_sha256 in hashes
        ):
            return t
        return t.model_copy(update=dict(valid=False, reason=f"{WRONG}its tokens are not those of any valid warm trial"))

    return [judged(t) for t in trials]


def supersede(trials: Sequence[Trial]) -> list[Trial]:
    """A block counts by the trials of the process that measured most of it (of equals the last); others are void."""
    sizes = Counter((t.block, t.process) for t in trials if t.phase == "warm" and not t.died)
    # process by block; the largest comes last and stays
    winner = dict(sorted(sizes, key=lambda key: (sizes[key], key[1])))

    def judged(t: Trial) -> Trial:
        if t.phase != "warm" or not t.valid or winner[t.block] == t.process:
            return t
        return t.model_copy(update=dict(valid=False, reason=SUPERSEDED))

    return [judged(t) for t in trials]
