"""Time to first token against prompt length: placements under three ways to choose a shape, and peers, cold and warm
apart.

A JAX subject is named "PLACEMENT POLICY". The policy says how long a prompt is when it runs:

exact     as long as it is: a program for every length
bucketed  padded to the next length of `generate.bucket`: a few programs for all lengths
fixed     padded to the bucket of the longest prompt asked: one program

Up to its first token every placement that jits `step` or `decode` runs the same program, so `step` stands for all of
them; one with the jit further inside (`layer`, `eager`) compiles less and dispatches more.

Each request asks a passage of its own, cut from English so that it has exactly the wanted number of tokens and begins
with a token that no other passage begins with: no prefix of it can be cached. Random ids for a model without a
tokenizer. `run` says what a trial belongs to: `warm` (all subjects at everybody's lengths,
interleaved), `tail` (more requests of some subjects at one length, for its percentiles) or `cold NAME` (the first
request of a fresh process, which is never the warm one).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Self

from llama_jax import checkpoint
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Sampler
from llama_lab.bench import AGAIN, environment, protocol, roofline
from llama_lab.bench.cold import Start, as_first, noting
from llama_lab.bench.cold import subject as bound
from llama_lab.bench.experiment import Experiment, Point, Runner, from_names
from llama_lab.bench.guard import Guard
from llama_lab.bench.lab import Lab
from llama_lab.bench.protocol import Reference
from llama_lab.bench.workload import Subject, Workload, blocks
from llama_lab.experiments.time_to_first_token import table
from llama_lab.experiments.time_to_first_token.plan import (
    COLD,
    POLICIES,
    PROBED,
    TAIL,
    WARM,
    WARM_UP,
    Plan,
    check_plan,
    processes_of,
    shaped,
    without,
    workloads,
)


@dataclass(frozen=True)
class FirstTokens(Experiment):
    """The requests of a `Plan`. Cold starts come first: a peer whose process dies there is missing from then on."""

    kind = Start

    model: str
    plan: Plan

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, object]) -> Self:
        return from_names(cls, parameters, plan=from_names(Plan, parameters))

    def __post_init__(self):
        if isinstance(self.plan, dict):  # as it was sent to a process
            object.__setattr__(self, "plan", Plan(**self.plan))

    @property
    def parameters(self) -> dict:
        return dict(model=self.model) | {each.name: getattr(self.plan, each.name) for each in fields(Plan)}

    def check(self) -> None:
        check_plan(self.plan, checkpoint.load_config(self.model))

    def measure(self, runner: Runner) -> tuple[list[Start], dict]:
        from llama_lab import peers

        loaded, plan = checkpoint.load(self.model), self.plan
        gaps = peers.missing(plan.peers, self.model)
        plan = without(plan, [gap["name"] for gap in gaps])
        asked = workloads(loaded, plan)
        for n in plan.all_lengths:
            if plan.starting(n):
                self.cold_starts(runner, loaded, plan, n, asked[COLD, n])
        plan = without(plan, [gap["name"] for gap in runner.missing])
        runner.run(answers(plan, asked))
        return runner.rows, dict(
            baseline=self.plan.placements[0],
            missing=gaps + runner.missing,
            floor=table.floor(loaded.config, self.plan.all_lengths),
            text="English" if loaded.tokenizer else "random ids",
        )

    def cold_starts(self, runner: Runner, loaded: checkpoint.Checkpoint, plan: Plan, n: int, work: Workload) -> None:
        """`starts` first requests at one length of each subject that is to make them there, each in a process of its
        own, in seeded random order."""
        reference, known = Reference(loaded, shaped(work, "step bucketed", max(plan.all_lengths))), {}
        names = plan.starting(n)
        for i, (block, order, name) in enumerate(blocks(names, plan.starts, plan.seed, COLD, n)):
            run = f"{COLD} {name}" if n == plan.at else f"{COLD} {name} at {n}"
            if name in {gap["name"] for gap in runner.missing} or runner.has(run, block):
                continue
            known.setdefault(block, reference.tokens(block).tolist())
            what = f"first request of a fresh process: {name}, {n} tokens"
            runner.progress(what, i, plan.starts * len(names))
            asked = dict(subject=name, order=order, plan=asdict(plan), greedy=known[block])
            try:
                runner.child(Point(run, block, first_request, 1, asked, workload=work))
            except UserError as error:
                if name not in plan.peers:
                    raise
                runner.journal.note(missing=dict(name=name, reason=str(error), remedy=""))


def answers(plan: Plan, asked: dict[tuple[str, int], Workload]) -> list[Point]:
    """The warm requests of a plan and its tails, each process with its share. asked: `workloads`."""
    found = []
    for rounds in processes_of(plan):
        run, block, names, lengths = rounds[-1]
        works = [(*key, asdict(work)) for key, work in asked.items() if key[1] in lengths]
        share = dict(plan=asdict(plan), rounds=rounds, asked=works)
        rows = (len(names) + (run == WARM)) * len(lengths)
        found.append(Point(run, block, interleaved, rows, share, f"{run} requests"))
    return found


# What the children run ------------------------------------------------------------------------------------------------


def build(
    lab: Lab, loaded: checkpoint.Checkpoint, names: Sequence[str], block: int, engines: dict, temperature: float = 0.0
) -> list[Subject]:
    """Subjects by name; policies of one placement share its engine and so its programs, which `engines` then holds by
    placement. Those that can sample do so at that temperature, where it is one.

    A peer that cannot be built is said to be missing.
    """
    from llama_lab.peers import PEERS

    made, sampler = {}, Sampler(temperature=temperature) if temperature else None
    for name in names:
        placement, _, policy = name.rpartition(" ")
        if policy in POLICIES:
            if placement not in made:
                made[placement], engines[placement] = bound(loaded, placement)
            made[name] = replace(made[placement], name=name)
        else:
            made |= {who.name: who for who in lab.peer(loaded, name, block)}
    samples = {name: name not in PEERS or PEERS[name].samples for name in made}
    return [replace(made[n], sampler=sampler if samples[n] else None) for n in names if n in made]


def interleaved(lab: Lab, plan: dict, rounds: list, asked: list) -> None:
    """Warm-up of every subject at every length, then the rounds: in each all lengths, at each length all subjects, in
    random order."""
    plan, works = Plan(**plan), {(run, n): Workload.from_json(work) for run, n, work in asked}
    loaded, engines = lab.load(), {}
    wanted = {n for *_, lengths in rounds for n in lengths}
    names = [name for name in plan.subjects if any(name in names for _, _, names, _ in rounds)]
    subjects = build(lab, loaded, names, rounds[0][1], engines, plan.temperature)
    warm_up(lab, subjects, {key: work for key, work in works.items() if key[1] in wanted}, plan)
    references, probe = references_of(loaded, works, plan, engines), roofline.Probe()
    for i, (run, block, names, lengths) in enumerate(rounds):
        lab.progress(f"{run} requests, block {block + 1}", i, len(rounds))
        if run != TAIL or not i % PROBED:
            bandwidth = probe.bandwidth()
        present = [who for who in subjects if who.name in names]
        for who, n, order in drawn(present, lengths, run, block, plan):
            work, where = works[run, n], dict(run=run, block=block, order=order, phase="warm")
            shape = shaped(work, who.name, max(plan.all_lengths))
            record, tokens = lab.trial(who, shape, block % len(work.prompts), **where)
            judged = references[run, n].judge(record, tokens, who.sampler)
            lab.keep(Start(**{**judged.model_dump(), "bandwidth_gbps": bandwidth}))
    lab.notes["gflops"] = roofline.flops()


def drawn(
    subjects: Sequence[Subject], lengths: Sequence[int], run: str, block: int, plan: Plan
) -> Iterator[tuple[Subject, int, int]]:
    """(subject, length, place in the block): lengths in seeded random order, at each the subjects in one; in `warm` the
    baseline twice."""
    rng, order = random.Random(f"{plan.seed} {run} {block}"), 0
    twins = [replace(who, name=who.name + AGAIN) for who in subjects if run == WARM and who.name == plan.placements[0]]
    for n in rng.sample(lengths, len(lengths)):
        for who in rng.sample([*subjects, *twins], len(subjects) + len(twins)):
            yield who, n, order
            order += 1


def warm_up(lab: Lab, subjects: Sequence[Subject], works: dict[tuple[str, int], Workload], plan: Plan) -> None:
    """Each subject at each length until its guard is silent; a placement's shape once, whichever policies share it."""
    done = set()
    for i, who in enumerate(subjects):
        lab.progress(f"warm-up of {who.name}", i, len(subjects))
        for n in (n for n in plan.all_lengths if (WARM_UP, n) in works):
            work = shaped(works[WARM_UP, n], who.name, max(plan.all_lengths))
            shape = (who.placement, work.length, work.slots) if who.backend == "jax" else (who.name, n)
            if shape not in done:
                protocol.warm_up(who, work)
            done.add(shape)


def references_of(
    loaded: checkpoint.Checkpoint, works: dict, plan: Plan, engines: dict
) -> dict[tuple[str, int], Reference]:
    """A reference for each (run, length), at bucketed shapes; all on one engine, that of the subjects' `step` where
    there is one."""
    first = Reference(loaded, next(iter(works.values())))
    if "step" in engines:
        first.engines[engines["step"].params.embedding.weight.dtype.name, "none"] = engines["step"]
    made = {key: Reference(loaded, shaped(work, "step bucketed", max(plan.all_lengths))) for key, work in works.items()}
    for reference in made.values():
        reference.engines = first.engines
    return made


def first_request(lab: Lab, subject: str, order: int, plan: dict, greedy: list) -> None:
    """The first request of this process. `load_ns` is weights and building; the part of compiling before the first
    token is its own."""
    plan = Plan(**plan)
    loaded = lab.load()
    began = time.perf_counter_ns()
    built = build(lab, loaded, [subject], lab.block, {}, plan.temperature)
    if not built:
        return
    load_ns, first = lab.load_ns + time.perf_counter_ns() - began, {}
    work = shaped(lab.workload, subject, max(plan.all_lengths))
    # which counts; the guard of a compiled PyTorch subject would forbid what is measured here
    with Guard() as guard:
        who = replace(built[0], run=noting(built[0].run, guard, first, time.time_ns()), guard=Guard)
        record, tokens = lab.trial(who, work, lab.block, phase="cold", order=order)
    peak = environment.peak_rss()
    first.pop("to_first_ns", None)  # a start's, which is not asked for here
    reference = Reference(loaded, work)
    reference.expect(lab.block, greedy)
    record = reference.judge(as_first(record), tokens, who.sampler)
    lab.keep(Start(**{**record.model_dump(), "load_ns": load_ns, "peak_rss_bytes": peak, **first}))
