"""Published speed-ups measured again: each way of timing that made a claim, and the same with the protocol's care.

Three ways to be wrong, one `run` name each in the table:

compilation  a warm-up shorter than the test leaves compilations in the timed region (GPT-2 in JAX, "2.44x" and
             "16.32x")
tail         a mean over a few cold iterations stands beside a percentile of many warm ones (time to first token,
             "4.25x")
order        one subject is timed after the other, so that the machine's drift becomes a difference between them

A trial that the protocol would void is kept with its reason: it is what a harness without a guard would have published.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from llama_jax import checkpoint, generate, prompts
from llama_jax.placement import parse
from llama_lab.bench import harness, passages, protocol, roofline, run, statistics, summary
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts, whole
from llama_lab.bench.lab import Lab
from llama_lab.bench.published import COLD_LOOP, figure_of
from llama_lab.bench.record import Trial
from llama_lab.bench.workload import Subject, Workload
from llama_lab.experiments.honest_measurement.selftest import guard_classes

CACHED, UNCACHED = "growing cache", "no cache"  # both compile again for every length, as the originals did
SHORT = "short warm-up"  # phase of a trial whose warm-up was shorter than itself
WARM_UP, TEST = 5, 15  # tokens, as published


@dataclass(frozen=True)
class HonestMeasurement(Experiment):
    """The trials of the three claims and of the A/B template (runs by name).

    processes, repeats: of each side of the cache claim, and warm answers in each. requests: warm ones for the time to
    first token. rounds, pairs: of one program against itself. blocks, ab_processes: of the A/B template, a against b.
    """

    beside = ("a", "b")

    model: str
    seed: Seed
    processes: int
    repeats: int
    requests: int
    rounds: int
    pairs: int
    blocks: int
    ab_processes: int
    simulated: int
    a: str
    b: str

    @property
    def also(self) -> object:
        return self.a, self.b

    def check(self) -> None:
        check_counts(processes=self.processes, repeats=self.repeats, requests=self.requests)
        check_counts(rounds=self.rounds, pairs=self.pairs)

    def measure(self, runner: Runner) -> tuple[list[Trial], dict]:
        loaded = checkpoint.load(self.model)

        def work(new_tokens: int, questions: int = 1) -> Workload:
            return passages.science(loaded, prompts.load(questions), new_tokens, self.seed)

        exact = passages.exact_length(loaded, work(TEST))
        runner.run(self.claims(exact, work(1, 5), work(9)))
        two = dict(placements=(parse(self.a), parse(self.b)), baseline=self.a, cold=1, explain=True, run="A/B")
        counts = dict(blocks=self.blocks, processes=self.ab_processes)
        plan = run.Plan(model=self.model, workload=work(25, 3), **two, **counts)
        compared = run.collect(plan, runner.journal, runner.progress)
        return [t for t in runner.rows if t.run != "A/B"] + compared, dict(
            weights_hash=loaded.weights_hash,
            harness_cost=harness.cost(loaded, work(25, 3), 2 * self.blocks),
            guard=guard_classes(),
            baseline=self.a,
            prefill_flops=roofline.prefill_flops(loaded.config, exact.length),
        )

    def claims(self, exact: Workload, first: Workload, again: Workload) -> list[Point]:
        """The processes of the three claims, with a workload for each: exact, first and again.

        compilation: a 15-token answer cold, after a warm-up of 5 tokens, and warm; with and without a cache, each in
        `processes` of its own. tail: first tokens of a new process, its compilation among them, then of `requests` warm
        ones. order: the same subject under two names, timed one after the other, then interleaved.
        """
        compilation = [
            Point(f"compilation {subject}", block, short_warm_up, 1 + self.repeats,
                  dict(subject=subject, repeats=self.repeats), f"warm-up against test length: {subject}",
                  workload=exact)
            for block in range(self.processes)
            for subject in (UNCACHED, CACHED)
        ]  # fmt: skip
        tail = Point("tail", 0, cold_and_warm_loop, COLD_LOOP + self.requests, dict(requests=self.requests),
                     "cold loop and warm loop", workload=first)  # fmt: skip
        order = [
            Point("order", block, two_orders, 4 * self.pairs, dict(pairs=self.pairs), "sequential and interleaved",
                  workload=again)
            for block in range(self.rounds)
        ]  # fmt: skip
        return [*compilation, tail, *order]


# What the children run ------------------------------------------------------------------------------------------------


def uncached(loaded: checkpoint.Checkpoint) -> Subject:
    """No cache and no padding: the whole text again for every token, each length a program of its own."""
    engine, base = generate.build(loaded, "step"), protocol.subject(loaded, parse("step"), UNCACHED)

    def run(ids, workload: Workload):
        text = list(ids)
        for _ in range(workload.new_tokens):
            batch = generate.request(engine.config, [text] * workload.batch, 1, length=len(text), slots=len(text))
            block = generate.fetch(generate.prefill(engine, batch)[0])
            text.append(int(block[0, 0]))
            yield block

    return replace(base, run=run, placement="step, exact lengths", identity={**base.identity, "cache": "none"})


def judging(lab: Lab, loaded: checkpoint.Checkpoint) -> Callable:
    """timed(program, prompt, **more): one gated trial, kept at once, with the bandwidth that is probed first."""
    reference, bandwidth = protocol.Reference(loaded, lab.workload), roofline.Probe().bandwidth()

    def timed(program: Subject, prompt: int, **more) -> None:
        lab.keep(reference.judge(*lab.trial(program, lab.workload, prompt, **more)), bandwidth_gbps=bandwidth)

    return timed


def short_warm_up(lab: Lab, subject: str, repeats: int) -> None:
    """First cold (no cache) or after five tokens (growing cache), as published; then warm."""
    loaded, workload = lab.load(), lab.workload
    timed = judging(lab, loaded)
    if subject == UNCACHED:
        program, first = uncached(loaded), "cold"
    else:
        program, first = protocol.subject(loaded, parse("step+growing"), CACHED), SHORT
        deque(islice(program.run(program.encode(workload.prompts[0]), workload), WARM_UP), maxlen=0)
    timed(program, 0, phase=first, order=0)
    protocol.warm_up(program, workload)
    for i in range(repeats):
        timed(program, 0, phase="warm", order=i + 1)


def cold_and_warm_loop(lab: Lab, requests: int) -> None:
    """One token a request: all that is timed is the way to the first token."""
    loaded = lab.load()
    timed, program = judging(lab, loaded), protocol.subject(loaded, parse("step"))
    for i in range(COLD_LOOP + requests):
        timed(program, i % len(lab.workload.prompts), order=i, phase="cold" if i < COLD_LOOP else "warm")


def two_orders(lab: Lab, pairs: int) -> None:
    """A and B are one program. Sequential: all of A, then all of B. Interleaved: pairs, each in random order."""
    loaded = lab.load()
    timed, program = judging(lab, loaded), protocol.subject(loaded, parse("step"))
    rng = np.random.default_rng([lab.workload.seed, lab.block])
    protocol.warm_up(program, lab.workload)
    one_by_one = [("sequential", name) for name in "AB" for _ in range(pairs)]
    in_pairs = [("interleaved", str(name)) for _ in range(pairs) for name in rng.permutation(list("AB"))]
    for i, (plan, name) in enumerate(one_by_one + in_pairs):
        timed(replace(program, name=f"{plan} {name}"), 0, phase="warm", order=i)


# What the trials say --------------------------------------------------------------------------------------------------


def answer_rates(trials: Sequence[Trial], subject: str, phase: str, guard: bool) -> dict[int, list[float]]:
    """Tokens over seconds of whole answers, first token included, as the original counted; by process.

    guard: leave void trials out. Wrong tokens have no rate either way.
    """
    mine = [t for t in whole(trials) if t.run == f"compilation {subject}" and t.phase == phase]
    counted = [t for t in mine if (t.valid if guard else t.token_times_ns and not t.wrong)]
    return summary.grouped(counted, "block", lambda t: t.new_tokens / t.seconds)


def speed_ups(trials: Sequence[Trial], seed: int = 0) -> list[dict]:
    """The three speed-ups of a cache: {label, guard, cached, uncached: tokens/s lists, published, ratio}.

    A ratio pairs processes: the k-th answer of one with the k-th of the other, processes resampled whole.
    """
    entries = []
    for label, guard, phases, known in (
        ("baseline cold, cache after a warm-up of 5 tokens", False, (SHORT, "cold"), "speed-up, short warm-up"),
        ("baseline cold, cache warm", False, ("warm", "cold"), "speed-up, long warm-up"),
        ("both warm", True, ("warm", "warm"), ""),
    ):
        sides = [answer_rates(trials, *side, guard) for side in zip((CACHED, UNCACHED), phases, strict=True)]
        shared = sorted(set(sides[0]) & set(sides[1]))
        pairs = [(*pair, block) for block in shared for pair in zip(*(side[block] for side in sides), strict=False)]
        ratio = statistics.ratio(*([p[i] for p in pairs] for i in (0, 1)), seed, clusters=[p[2] for p in pairs])
        cached, uncached = ([rate for rates in side.values() for rate in rates] for side in sides)
        published = figure_of("kv-cache", known) if known else None
        about = dict(label=label, guard=guard, published=published, ratio=ratio)
        entries.append(dict(**about, cached=cached, uncached=uncached))
    return entries


def as_published(trials: Sequence[Trial]) -> list[Trial]:
    """The cache claim's trials that were timed the published way, all in one phase."""
    return [
        t.model_copy(update=dict(phase=SHORT))
        for t in trials
        if t.run.startswith("compilation") and t.phase in ("cold", SHORT)
    ]


def limit(trials: Sequence[Trial]) -> float:
    """Tokens/s that the memory bandwidth, as each process probed it, allows the answers of the cache claim."""
    return float(np.median([t.limit for t in trials if t.run.startswith("compilation")]))


def first_tokens(trials: Sequence[Trial], seed: int = 0) -> dict:
    """Time to first token in ms, cold loop and warm: means, and the percentiles that the sample supports."""
    tail = sorted((t for t in whole(trials) if t.run == "tail" and t.token_times_ns), key=lambda t: t.order)
    cold, warm = (
        [t.ttft * 1e3 for t in tail if t.phase == phase and (t.valid or phase == "cold")] for phase in ("cold", "warm")
    )
    return dict(
        cold=cold, warm=warm, cold_mean=float(np.mean(cold)), naive_p99=float(np.percentile(warm, 99)),
        warm_median=statistics.summarise(warm, seed), **statistics.percentiles(warm),
        note=statistics.percentile_note(len(warm), (99,)), published_mean=figure_of("ttft", "mean, JIT-only"),
        published_p99=figure_of("ttft", "P99, JIT-only"),
    )  # fmt: skip


def two_ways(trials: Sequence[Trial], seed: int = 0) -> list[dict]:
    """One entry per round: {sequential: unpaired Ratio of B over A, with Welch's interval, interleaved: paired}."""
    rounds, measured = [], sorted((t for t in whole(trials) if t.run == "order"), key=lambda t: t.order)
    for block in sorted({t.block for t in measured}):
        valid = [t for t in measured if t.block == block and t.valid]
        rates = summary.grouped(valid, "subject", "tg")
        apart = statistics.welch(*(rates.get(f"sequential {name}", ()) for name in "BA"))
        a, b = ({t.order // 2: t.tg for t in valid if t.subject == f"interleaved {name}"} for name in "AB")
        pairs = sorted(set(a) & set(b))
        side_by_side = statistics.ratio([b[p] for p in pairs], [a[p] for p in pairs], seed)
        rounds.append(dict(sequential=apart, interleaved=side_by_side))
    return rounds
