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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace

from llama_jax import checkpoint
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Sampler
from llama_lab.bench import AGAIN, environment, phases, protocol, requests, roofline
from llama_lab.bench.cold import Start, as_first, noting
from llama_lab.bench.cold import subject as bound
from llama_lab.bench.guard import Guard
from llama_lab.bench.job import Job, opened, watched, whole
from llama_lab.bench.journal import Journal
from llama_lab.bench.order import shuffled
from llama_lab.bench.protocol import Reference
from llama_lab.bench.workload import Subject, Workload
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


def record(
    journal: Journal,
    *,
    model: str,
    seed: int,
    lengths: Sequence[int],
    placements: Sequence[str],
    peers: Sequence[str],
    blocks: int,
    processes: int,
    at: int,
    tail: Sequence[Sequence[int]],
    tail_subjects: Sequence[str],
    temperature: float,
    starts: int,
    new_tokens: int,
) -> tuple[list[Start], dict]:
    """All requests of a plan, and what the meta file says of them. Raises UserError for a plan that cannot be."""
    plan = Plan(
        placements=placements,
        peers=peers,
        lengths=lengths,
        blocks=blocks,
        processes=processes,
        at=at,
        starts=starts,
        tail=tail,
        tail_subjects=tail_subjects,
        temperature=temperature,
        new_tokens=new_tokens,
        seed=seed,
    )
    check_plan(plan, checkpoint.load_config(model))
    loaded = checkpoint.load(model)
    gaps = measure(Job(model, None, journal), loaded, plan)
    return whole(journal.trials), dict(
        baseline=placements[0],
        missing=gaps,
        floor=table.floor(loaded.config, plan.all_lengths),
        text="English" if loaded.tokenizer else "random ids",
    )


def measure(job: Job, loaded: checkpoint.Checkpoint, plan: Plan) -> list[dict]:
    """Everything the plan asks for that the journal does not hold yet; returns the peers that are missing: {name,
    reason, remedy}.

    Cold starts come first: a peer whose process dies there is missing from then on. Raises UserError, see `check_plan`.
    """
    from llama_lab import peers

    check_plan(plan, loaded.config)
    gaps = peers.missing(plan.peers, job.model)
    plan = without(plan, [gap["name"] for gap in gaps])
    asked = workloads(loaded, plan)
    for n in plan.all_lengths:
        if plan.starting(n):
            cold_starts(job, loaded, plan, n, asked[COLD, n])
    plan = without(plan, [gap["name"] for gap in phases.missing(job.journal)])
    answers(job, plan, asked)
    return gaps + phases.missing(job.journal)


def answers(job: Job, plan: Plan, asked: dict[tuple[str, int], Workload]) -> None:
    """The warm requests of a plan and its tails, each process with its share. asked: `workloads`."""
    for rounds in processes_of(plan):
        run, block, names, lengths = rounds[-1]
        twin = run == WARM
        job.child(
            run,
            block,
            f"{__name__}:interleaved",
            (len(names) + twin) * len(lengths),
            plan=asdict(plan),
            rounds=rounds,
            asked=[(*key, asdict(work)) for key, work in asked.items() if key[1] in lengths],
        )


def cold_starts(job: Job, loaded: checkpoint.Checkpoint, plan: Plan, n: int, work: Workload) -> None:
    """`starts` first requests at one length of each subject that is to make them there, each in a process of its own,
    in seeded random order."""
    reference, known = Reference(loaded, shaped(work, "step bucketed", max(plan.all_lengths))), {}
    gone = {gap["name"] for gap in phases.missing(job.journal)}
    for block in range(plan.starts):
        drawn = shuffled(plan.starting(n), plan.seed, COLD, n, block)
        for order, name in enumerate(drawn):
            run = f"{COLD} {name}" if n == plan.at else f"{COLD} {name} at {n}"
            if name in gone or any(t.run == run and t.block == block for t in job.journal.trials):
                continue
            known.setdefault(block, reference.tokens(block).tolist())
            job.progress(
                f"first request of a fresh process: {name}, {n} tokens",
                block * len(drawn) + order,
                plan.starts * len(drawn),
            )
            arguments = dict(subject=name, order=order, plan=asdict(plan), work=asdict(work), greedy=known[block])
            try:
                job.child(run, block, f"{__name__}:first_request", 1, **arguments)
            except UserError as error:
                if name not in plan.peers:
                    raise
                job.journal.note(missing=dict(name=name, reason=str(error), remedy=""))
            gone |= {gap["name"] for gap in phases.missing(job.journal)}


# What the children run ------------------------------------------------------------------------------------------------


def build(
    say: Callable,
    loaded: checkpoint.Checkpoint,
    names: Sequence[str],
    block: int,
    engines: dict,
    temperature: float = 0.0,
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
            made |= {who.name: who for who in requests.build(say, loaded, dict(peers=[name]), (), block)}
    samples = {name: name not in PEERS or PEERS[name].samples for name in made}
    return [replace(made[n], sampler=sampler if samples[n] else None) for n in names if n in made]


def interleaved(say: Callable, job: dict, identity: dict, plan: dict, rounds: list, asked: list) -> dict:
    """Warm-up of every subject at every length, then the rounds: in each all lengths, at each length all subjects, in
    random order."""
    plan, works = Plan(**plan), {(run, n): Workload.from_json(work) for run, n, work in asked}
    identity = {k: v for k, v in identity.items() if k not in ("run", "block")} | dict(phase="warm")
    with watched(say) as more:
        loaded, *_ = opened(job)
        engines: dict = {}
        wanted = {n for *_, lengths in rounds for n in lengths}
        names = [name for name in plan.subjects if any(name in names for _, _, names, _ in rounds)]
        subjects = build(say, loaded, names, rounds[0][1], engines, plan.temperature)
        warm_up(say, subjects, {key: work for key, work in works.items() if key[1] in wanted}, plan)
        references, probe = references_of(loaded, works, plan, engines), roofline.Probe()
        for i, (run, block, names, lengths) in enumerate(rounds):
            say("progress", [f"{run} requests, block {block + 1}", i, len(rounds)])
            if run != TAIL or not i % PROBED:
                bandwidth = probe.bandwidth()
            present = [who for who in subjects if who.name in names]
            for who, n, order in drawn(present, lengths, run, block, plan):
                reference, passage = references[run, n], block % len(works[run, n].prompts)
                record, tokens = protocol.trial(
                    who,
                    shaped(works[run, n], who.name, max(plan.all_lengths)),
                    passage,
                    run=run,
                    block=block,
                    order=order,
                    **identity,
                )
                judged = reference.judge(record, tokens, who.sampler)
                say("trial", Start(**{**judged.model_dump(), "bandwidth_gbps": bandwidth}).model_dump())
        more["gflops"] = roofline.flops()
    return {}


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


def warm_up(say: Callable, subjects: Sequence[Subject], works: dict[tuple[str, int], Workload], plan: Plan) -> None:
    """Each subject at each length until its guard is silent; a placement's shape once, whichever policies share it."""
    done = set()
    for i, who in enumerate(subjects):
        say("progress", [f"warm-up of {who.name}", i, len(subjects)])
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


def first_request(
    say: Callable, job: dict, identity: dict, subject: str, order: int, plan: dict, work: dict, greedy: list
) -> dict:
    """The first request of this process. `load_ns` is weights and building; the part of compiling before the first
    token is its own."""
    plan, work = Plan(**plan), Workload.from_json(work)
    with watched(say):
        loaded, _, _, load_ns = opened(job)
        began = time.perf_counter_ns()
        built = build(say, loaded, [subject], identity["block"], {}, plan.temperature)
        if not built:
            return {}
        load_ns, first = load_ns + time.perf_counter_ns() - began, {}
        work = shaped(work, subject, max(plan.all_lengths))
        # which counts; the guard of a compiled PyTorch subject would forbid what is measured here
        with Guard() as guard:
            who = replace(built[0], run=noting(built[0].run, guard, first, time.time_ns()), guard=Guard)
            record, tokens = protocol.trial(who, work, identity["block"], phase="cold", order=order, **identity)
        peak = environment.peak_rss()
        first.pop("to_first_ns", None)  # a start's, which is not asked for here
        reference = Reference(loaded, work)
        reference.expect(identity["block"], greedy)
        record = reference.judge(as_first(record), tokens, who.sampler)
        own = dict(load_ns=load_ns, peak_rss_bytes=peak, **first)
        say("trial", Start(**{**record.model_dump(), **own}).model_dump())
    return {}
