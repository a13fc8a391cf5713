"""The three phases of a program's life, each in fresh processes: cold, cached, warm.

cold    first request of a new process, no compiled program on disk
cached  the same with every program of the placement in JAX's persistent cache
warm    after warm-up, all subjects interleaved in one process; repeated in several processes, because what a process
        draws once (memory layout, thread placement) is luck that all its trials share

Every trial goes to the journal as it is made. A child that dies is a recorded failure; the run goes on without it.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Literal, Self, get_args, get_origin

import numpy as np

from llama_jax.checkpoint import Checkpoint
from llama_jax.placement import Placement, parse
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Sampler
from llama_lab.bench import AGAIN, DIED, SAMPLED, WRONG, available, environment, gate, memory, process, protocol
from llama_lab.bench.cold import as_first
from llama_lab.bench.experiment import run_child
from llama_lab.bench.journal import Journal
from llama_lab.bench.lab import Lab
from llama_lab.bench.progress import Progress, announce
from llama_lab.bench.record import Trial
from llama_lab.bench.roofline import flops
from llama_lab.bench.summary import grouped
from llama_lab.bench.workload import Subject, Workload

SUPERSEDED = "its block was cut off and measured again"
PLACE = ("run", "block", "order", "phase", "process")  # fields that say which trial it is
PATIENCE = 2  # a subject is left out once this many processes died in it


@dataclass(frozen=True)
class Plan:
    """What a run measures. blocks are spread evenly over `processes`; `cold` and `cached` are processes per subject.

    peers: names of `peers.PEERS`; one that cannot be built leaves a note in the journal (`Journal.missing`) and is
    left out. sampled: each placement is measured under this sampler too, in the same blocks; the workload's is for the
    others.
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
        names, known = list(names), available.peer_names()
        placements = tuple(parse(name) for name in names if name not in known)
        others = tuple(name for name in names if name in known)
        return cls(model, placements, workload, baseline or names[0], peers=others, **more)

    @property
    def subjects(self) -> dict[str, Placement | None]:
        """Placements by their names, then the names of peers, which have none."""
        return {p.name: p for p in self.placements} | dict.fromkeys(self.peers)

    def asked(self, names: Iterable[str]) -> dict:
        """Some of the subjects, as `Subjects` takes them."""
        chosen = {name: self.subjects[name] for name in names}
        placements = [asdict(placement) for placement in chosen.values() if placement]
        return dict(placements=placements, peers=[name for name, placement in chosen.items() if not placement])

    def check(self) -> None:
        """Raises UserError for a plan that cannot be carried out."""
        from llama_lab import peers

        names = [p.name for p in self.placements]
        if self.baseline not in names:
            raise UserError(f"The baseline {self.baseline!r} is not among the subjects ({', '.join(names)}).")
        blocks, processes = self.blocks, self.processes
        if blocks < 1 or processes < 1:
            raise UserError(f"{blocks} blocks in {processes} processes asked for; there must be at least one of each.")
        if processes > blocks:
            raise UserError(f"{processes} processes for {blocks} blocks; each process needs a block of its own.")
        if len(set(names)) != len(names):
            raise UserError(f"A placement is named twice: {', '.join(names)}.")
        peers.check(self.peers)
        if twice := {*names} & {*self.peers}:
            raise UserError(f"{twice.pop()!r} names both a placement and a peer; give the placement another name.")
        process.check_threads(self.threads)


def run(plan: Plan, journal: Journal | None = None, progress: Progress = announce) -> list[Trial]:
    """Everything the plan asks for that the journal does not hold yet; returns all trials, judged as a whole.

    First requests are judged by the warm ones. The rest of an interrupted block is void if the block was measured
    again. Raises UserError for a mistake in the plan, and when the baseline itself cannot be measured.
    """
    plan.check()
    with protocol.alone() as lock:
        bench = Bench(plan, Journal() if journal is None else journal, progress, lock)
        bench.first_requests("cold", plan.cold)
        bench.first_requests("cached", plan.cached)
        bench.warm()
    return supersede(judge_starts(bench.trials))


@dataclass(frozen=True)
class Bench:
    """A plan being carried out: the journal it fills, and the processes it starts under the measurement lock."""

    plan: Plan
    journal: Journal
    progress: Progress
    lock: IO

    @property
    def trials(self) -> list[Trial]:
        return [t for t in self.journal.trials if t.run == self.plan.run]

    @property
    def alive(self) -> dict[str, Placement | None]:
        """The subjects that could be built so far and have not yet cost PATIENCE processes their life."""
        deaths = Counter(t.placement for t in self.trials if t.phase == "warm" and t.died)
        missing = [gap["name"] for gap in self.journal.missing]
        return {name: p for name, p in self.plan.subjects.items() if deaths[name] < PATIENCE and name not in missing}

    def expected(self, names: dict[str, Placement | None]) -> set[str]:
        """The subjects of a block's trials."""
        sampled = [name + SAMPLED for name, placement in names.items() if placement and self.plan.sampled]
        return {*names, self.plan.baseline + AGAIN, *sampled}

    def tell(self, what: str) -> None:
        plan = self.plan
        total = len(plan.subjects) * (plan.cold + plan.cached) + len(self.expected(plan.subjects)) * plan.blocks
        self.progress(what, min(len(self.trials), total), total)

    def start(
        self, task: Callable, identity: dict, arguments: dict, cache: Path | None = None, silent: bool = False
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

        plan = self.plan
        work = dict(identity=identity, model=plan.model, workload=asdict(plan.workload))
        asked = dict(task=f"{__name__}:{task.__name__}", lab=work, arguments=arguments)
        how = dict(limit=plan.limit, threads=plan.threads, cache=cache)
        return run_child(None if silent else self.journal, self.lock, asked, heard, **how), announced

    def fail(self, subject: str, reason: str, **identity) -> None:
        """Record a trial that never finished. identity: at least its block, order, phase and process."""
        plan, work = self.plan, self.plan.workload
        required = [name for name, field in Trial.model_fields.items() if field.is_required() and name not in PLACE]
        blank = {name: blank_of(Trial.model_fields[name].annotation) for name in required}
        known = dict(
            run=plan.run, seed=work.seed, reason=DIED + reason, subject=subject, backend=available.backend_of(subject),
            placement=subject.removesuffix(AGAIN).removesuffix(SAMPLED), model=plan.model, batch=work.batch,
            sampling=str(plan.sampled if subject.endswith(SAMPLED) else work.sampler), cache_slots=work.slots,
        )  # fmt: skip
        self.journal.append(Trial(**{**blank, **known, **identity}))

    def first_requests(self, phase: str, count: int) -> None:
        """`count` first requests of each subject, interleaved, each in its own process."""
        from llama_lab import peers

        plan, subjects = self.plan, self.plan.subjects
        done = {(t.subject, t.block) for t in self.trials if t.phase == phase}
        wanted = [name for name, p in subjects.items() if phase == "cold" or p or peers.get(name).jax]
        with tempfile.TemporaryDirectory() as folder:
            filled: set[str] = set()
            for block, (order, name) in itertools.product(range(count), enumerate(subjects)):
                missing = [gap["name"] for gap in self.journal.missing]
                if (name, block) in done or name not in wanted or name in missing:
                    continue
                number = self.journal.next_process()
                prompt = block % len(plan.workload.prompts)
                identity = dict(run=plan.run, block=block, order=order, phase=phase, process=number)
                asked = dict(subjects=plan.asked([name]), prompt=prompt)
                cache = Path(folder, str(order))
                if phase == "cold":  # an empty one each time
                    persistent = getattr(subjects[name], "compile", "") == "persistent"
                    cache = cache / str(block) if persistent else None
                elif name not in filled:
                    self.tell(f"filling the cache for {name}")
                    outcome, _ = self.start(first_request, identity, asked, cache, silent=True)
                    if not outcome.ok:
                        self.fail(name, f"while the cache was filled, {outcome.reason}", **identity, prompt=prompt)
                        continue
                    filled.add(name)
                self.tell(f"{phase} start of {name}")
                outcome, _ = self.start(first_request, identity, asked, cache)
                if not outcome.ok:
                    self.fail(name, outcome.reason, **identity, prompt=prompt)

    def warm(self) -> None:
        """The blocks, spread over the plan's processes. A block that was cut off is measured again, whole, in a new
        process."""
        plan = self.plan
        for group in np.array_split(range(plan.blocks), plan.processes):
            while pending := [int(block) for block in group if not self.complete(int(block))]:
                before = len(self.trials)
                identity = dict(run=plan.run, phase="warm", process=self.journal.next_process())
                subjects = plan.asked(self.alive) | dict(sampled=plan.sampled and asdict(plan.sampled))
                asked = dict(subjects=subjects, blocks=pending, baseline=plan.baseline, explain=plan.explain)
                outcome, announced = self.start(interleaved_blocks, identity, asked)
                if outcome.ok:
                    break
                if "subject" in announced:
                    where = dict(block=announced["block"], order=announced["order"])
                    self.fail(announced["subject"], outcome.reason, **identity, **where)
                    if plan.baseline not in self.alive:
                        raise UserError(f"The baseline {plan.baseline!r} cannot be measured: {outcome.reason}")
                elif len(self.trials) == before:  # else between two trials: nobody's fault
                    raise UserError(f"The measuring process died before its first trial: {outcome.reason}")

    def complete(self, block: int) -> bool:
        """Whether some process has measured the whole block: only trials of one process, close in time, make a pair."""
        here = [t for t in self.trials if t.phase == "warm" and t.block == block and not t.died]
        expected = self.expected(self.alive)
        return any(expected <= {*names} for names in grouped(here, "process", "subject").values())


def blank_of(kind: object) -> object:
    """What a field of this type holds where nothing was seen: None if that may be, else the first of a list of
    values or the type's empty one."""
    inner = get_args(kind)
    if type(None) in inner:
        return None
    return inner[0] if get_origin(kind) is Literal else kind()


def void(trials: Sequence[Trial], reason: str, is_void: Callable[[Trial], bool]) -> list[Trial]:
    """The trials, those void of which that is true."""
    changes = dict(valid=False, reason=reason)
    return [t.model_copy(update=changes) if t.valid and is_void(t) else t for t in trials]


def judge_starts(trials: Sequence[Trial]) -> list[Trial]:
    """First requests are judged by the warm ones: void where no valid warm trial of that prompt and dtype made the same
    tokens."""

    def asked(t: Trial) -> tuple:
        return t.prompt, t.dtype, t.quantisation, t.sampling, t.new_tokens

    known = grouped((t for t in trials if t.phase == "warm" and t.valid), asked, "tokens_sha256")

    def is_wrong(t: Trial) -> bool:
        first = t.phase != "warm" and not gate.approximate(t.quantisation)
        return first and t.tokens_sha256 not in known.get(asked(t), [t.tokens_sha256])

    return void(trials, f"{WRONG}its tokens are not those of any valid warm trial", is_wrong)


def supersede(trials: Sequence[Trial]) -> list[Trial]:
    """A block counts by the trials of the process that measured most of it (of equals the last); others are void."""
    sizes = Counter((t.block, t.process) for t in trials if t.phase == "warm" and not t.died)
    # process by block; the largest comes last and stays
    winner = dict(sorted(sizes, key=lambda key: (sizes[key], key[1])))
    return void(trials, SUPERSEDED, lambda t: t.phase == "warm" and winner[t.block] != t.process)


# In the children ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subjects:
    """The subjects of a process, as read from JSON. placements: fields of each. sampled: fields of a sampler under
    which the placements are measured too."""

    placements: Sequence[dict]
    peers: Sequence[str] = ()
    sampled: dict | None = None

    def made(self) -> list[Placement]:
        return [Placement(**fields) for fields in self.placements]

    def load(self, lab: Lab) -> Checkpoint:
        return lab.load(available.form(lab.model, [] if self.peers else self.made()))

    def build(self, lab: Lab, loaded: Checkpoint, block: int) -> list[Subject]:
        """The subjects. A peer that cannot be built is reported as missing, with its reason."""
        placements = [protocol.subject(loaded, placement) for placement in self.made()]
        built = placements + [subject for name in self.peers for subject in lab.peer(loaded, name, block)]
        if self.sampled:
            sampler = Sampler(**self.sampled)
            built += [replace(subject, name=subject.name + SAMPLED, sampler=sampler) for subject in placements]
        return built


def first_request(lab: Lab, subjects: dict, prompt: int) -> None:
    """One request of a new process; then, outside the timed region, the program's own sizes."""
    asked = Subjects(**subjects)
    loaded = available.load_alone(lab, *asked.peers) if asked.peers else asked.load(lab)
    began = time.perf_counter_ns()
    built = asked.build(lab, loaded, lab.block)
    if not built:
        return
    (subject,), load_ns = built, lab.load_ns + time.perf_counter_ns() - began
    lab.announce(what=f"first request of {subject.name}")
    record, _ = lab.trial(replace(subject, guard=subject.counter), lab.workload, prompt)
    cached = lab.identity["phase"] == "cached"
    compiled = f"not cached: {record.compiled} programs compiled" if cached and record.compiled else ""
    program = memory.decode_program(memory.programs(), {name for p in asked.made() for name in p.outermost})
    row = as_first(
        record,
        compiled,
        load_ns=load_ns,
        peak_rss_bytes=environment.peak_rss(),
        device_peak_bytes=record.device_peak_bytes or memory.device_peak(),
        **protocol.program_sizes(program),
    )
    lab.keep(row)


def interleaved_blocks(lab: Lab, subjects: dict, blocks: list[int], baseline: str, explain: bool) -> None:
    """Warm trials of all subjects, block by block."""
    asked = Subjects(**subjects)
    loaded = asked.load(lab)
    reference = protocol.Reference(loaded, lab.workload)
    lab.blocks(asked.build(lab, loaded, blocks[0]), blocks, baseline, reference, explain=explain)
    lab.notes["gflops"] = flops()
