"""Which placement for this workload: recorded trials in, a recommendation out, with the trials behind it and what would
change it. For `llama-jax advise` and for notebooks.

A request takes its first token plus (n - 1) tokens. A start takes the extra time of a fresh process's first request
over a warm one. Both come from the recorded run with the nearest context; first tokens are scaled with the prompt's
length.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from llama_jax.generate import bucket
from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, SAMPLED, environment, record, statistics, summary
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import times
from llama_lab.reporting import notebooks

MAX_GAP_S = 0.25  # a reader who waits longer for the next words sees them come in lumps
FEW, FEW_STARTS = 6, 3  # trials, and cold starts, below which the evidence is called thin
BEYOND = 2.0  # and so it is where a size is further than this factor from what was measured
Tables = Sequence[tuple[str, Sequence[Trial], dict]]  # (name, trials, meta) each


@dataclass(frozen=True)
class Wish:
    """requests: per start of the process. streaming: tokens are needed as they are made. lengths: number of different
    prompt lengths (each padded as `generate` pads it). warm: the process is already running, compiled. memory: bytes.
    exact: float32 tokens."""

    prompt_tokens: int = 100
    new_tokens: int = 128
    requests: int = 1
    streaming: bool = False
    lengths: int = 1
    warm: bool = False
    memory: int | None = None
    exact: bool = False

    def __post_init__(self):
        for name in ("prompt_tokens", "new_tokens", "requests", "lengths"):
            if getattr(self, name) < 1:
                raise UserError(f"{name.replace('_', '-')} is {getattr(self, name)}; it must be 1 or more.")


@dataclass(frozen=True)
class Candidate:
    """One placement under one wish. where: table and run of its trials. seconds: of a request, by (process, block).
    start: seconds that a fresh process takes longer for its first; program: of compiling one program. gap: seconds
    between two arrivals. peak: bytes. distance: the worse of two factors, prompt and new tokens from what was measured.
    nan and None: not recorded."""

    name: str
    where: str
    wish: Wish
    seconds: dict[tuple[int, int], float]
    start: float
    program: float
    gap: float
    peak: int | None
    exact: bool
    starts: int
    distance: float

    @property
    def request(self) -> float:
        return float(np.median([*self.seconds.values()]))

    @property
    def processes(self) -> int:
        return len({process for process, _ in self.seconds})

    @property
    def before(self) -> float:
        """Seconds of a start that do not depend on the number of requests; nan if a start is needed but not
        recorded."""
        return 0.0 if self.wish.warm else self.start + (buckets(self.wish) - 1) * self.program

    @property
    def total(self) -> float:
        """Seconds of a start and its requests."""
        return self.before + self.wish.requests * self.request

    @property
    def refusal(self) -> str:
        """Why it does not meet the wish; "" if it does."""
        if self.wish.exact and not self.exact:
            return "its tokens are not float32's"
        if self.wish.streaming and self.gap > MAX_GAP_S:
            return f"tokens would arrive every {self.gap:.2g} s"
        if self.wish.memory is not None and (self.peak is None or self.peak > self.wish.memory):
            return "its memory was not recorded" if self.peak is None else f"it took {self.peak / 1e6:.0f} MB"
        return "no cold start of it was recorded" if not self.wish.warm and math.isnan(self.start) else ""

    @property
    def doubts(self) -> list[str]:
        """Why the evidence for it is thin."""
        measured, starts = f"as long or as short as the timed ones of {self.name}", counted(self.starts, "cold start")
        doubts = {
            f"{self.name} was timed only {counted(len(self.seconds), 'time')}": len(self.seconds) < FEW,
            f"only {starts} of {self.name}": not self.wish.warm and self.starts < FEW_STARTS,
            f"{self.name} was timed in one process, and no interval contains its luck": self.processes < 2,
            f"prompt or answer is {self.distance:.1f} times {measured}": self.distance > BEYOND,
        }
        return [words for words, holds in doubts.items() if holds]


@functools.cache
def buckets(wish: Wish) -> int:
    """Number of programs for prompts of this many lengths, up to the given longest, padded as `generate` pads them."""
    return min(wish.lengths, len({bucket(n) for n in range(1, wish.prompt_tokens + 1)}))


def counted(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "es" if what.endswith("s") else "s")


def candidates(tables: Tables, wish: Wish) -> list[Candidate]:
    """One candidate per placement, from the greedy run with the context nearest to the wish."""
    nearest: dict[str, Candidate] = {}
    for table, trials, _ in tables:
        ours = [t for t in trials if t.valid and t.backend == "jax" and t.batch == 1]
        greedy = [t for t in ours if not t.subject.endswith((SAMPLED, AGAIN))]
        cold = summary.grouped([t for t in greedy if t.phase == "cold"], "subject")
        warm = [t for t in greedy if t.phase == "warm" and len(t.token_times_ns) > 1]
        for (run, name), answers in summary.grouped(warm, lambda t: (t.run, t.subject)).items():
            made = candidate(f"{table} ({run})", answers, cold.get(name, []), wish)
            if name not in nearest or made.distance < nearest[name].distance:
                nearest[name] = made
    return list(nearest.values())


def candidate(where: str, warm: Sequence[Trial], starts: Sequence[Trial], wish: Wish) -> Candidate:
    first, gap, prompt = (
        float(np.median([getattr(t, key) for t in warm])) for key in ("ttft", "tpot", "prompt_tokens")
    )
    new = float(np.median([len(t.token_times_ns) for t in warm]))
    longer = [t.seconds - first - (len(t.token_times_ns) - 1) * gap for t in starts]
    compiled = [t.compile_seconds / t.compiled for t in starts if t.compiled]
    sizes = ((wish.prompt_tokens, prompt), (wish.new_tokens, new))
    scale, more = wish.prompt_tokens, wish.new_tokens - 1
    return Candidate(
        name=warm[0].subject,
        where=where,
        wish=wish,
        seconds={(t.process, t.block): t.ttft * scale / prompt + more * t.tpot for t in warm},
        start=max(float(np.median(longer)), 0.0) if starts else math.nan,
        program=float(np.median(compiled)) if compiled else 0.0,
        gap=gap * together(warm[0], wish),
        peak=max((t.peak_rss_bytes for t in starts if t.peak_rss_bytes), default=None),
        exact=all((t.dtype, t.quantisation) == ("float32", "none") for t in warm),
        starts=len(starts),
        distance=max(max(wished / measured, measured / wished) for wished, measured in sizes),
    )


def together(answer: Trial, wish: Wish) -> int:
    """Number of tokens that arrive together: those of one call; 1 for a whole answer."""
    arrivals = answer.token_times_ns[1:]
    most = max(map(arrivals.count, arrivals))
    return wish.new_tokens - 1 if most == len(arrivals) > 1 else most


def ranked(known: Sequence[Candidate]) -> list[Candidate]:
    """Those that meet the wish, the fastest first."""
    return sorted((c for c in known if not c.refusal), key=lambda c: c.total)


def changes(known: Sequence[Candidate], wish: Wish, best: Candidate) -> list[dict]:
    """{wish, then}: other wishes for which another placement would be recommended."""
    others = {
        "tokens are needed as they are made": replace(wish, streaming=True),
        "tokens may arrive all at once": replace(wish, streaming=False),
        "float32's tokens are needed": replace(wish, exact=True),
        "tokens may be those of weights in fewer bits": replace(wish, exact=False),
        "the process runs already": replace(wish, warm=True),
        "the process must start first": replace(wish, warm=False),
        "each start serves one request": replace(wish, requests=1),
        "each start serves 1,000 requests": replace(wish, requests=1000),
    }
    orders = {words: ranked([replace(c, wish=other) for c in known]) for words, other in others.items()}
    return [
        dict(wish=words, then=order[0].name) for words, order in orders.items() if order and order[0].name != best.name
    ]


def consult(tables: Tables, model: str, wish: Wish, seed: int = 0) -> dict:
    """The recommendation by the trials of one model: {placement, seconds, start_seconds, request_seconds, evidence,
    thin, runner_up, changes, refused, ranking}. Raises UserError if nothing recorded meets the wish."""
    mine = [(name, [t for t in trials if t.model == model], meta) for name, trials, meta in tables]
    if not any(trials for _, trials, _ in mine):
        models = ", ".join(sorted({t.model for _, trials, _ in tables for t in trials})) or "nothing"
        raise UserError(f"No data are recorded for {model} (recorded: {models}); measure it with --measure.")
    known = candidates(mine, wish)
    order, refused = ranked(known), [dict(name=c.name, reason=c.refusal) for c in known if c.refusal]
    if not order:
        reasons = "; ".join(f"{r['name']}: {r['reason']}" for r in refused) or "there are no warm trials of placements"
        raise UserError(f"No recorded placement meets your limits ({reasons}); relax them, or measure (--measure).")
    best = order[0]
    return dict(
        placement=best.name,
        seconds=best.total,
        start_seconds=best.before,
        request_seconds=best.request,
        evidence=dict(where=best.where, trials=len(best.seconds), processes=best.processes, cold_starts=best.starts),
        thin=[*elsewhere([meta for _, trials, meta in mine if trials]), *best.doubts],
        runner_up=beside(order[1], best, seed) if order[1:] else None,
        changes=changes(known, wish, best),
        refused=refused,
        ranking=[dict(name=c.name, seconds=c.total, request_seconds=c.request, where=c.where) for c in order],
    )


def beside(second: Candidate, best: Candidate, seed: int = 0) -> dict:
    """The runner-up: {name, seconds, ratio, verdict, judged, break_even_requests}. ratio: of its total seconds over the
    best one's, paired by block, the verdict about it; None if the two did not run side by side."""
    both = sorted(set(second.seconds) & set(best.seconds)) if second.where == best.where else []
    sides, said = None, dict.fromkeys(("verdict", "judged"), "not measured side by side")
    if both:
        above, below = ([c.before + c.wish.requests * c.seconds[pair] for pair in both] for c in (second, best))
        ratio = statistics.of_times(statistics.ratio(above, below, seed, [process for process, _ in both]))
        sides = dict(value=ratio.value, low=ratio.low, high=ratio.high, n=ratio.n)
        said = dict(verdict=ratio.verdict, judged=ratio.judged)
    turn = None if best.wish.warm else break_even(best, second)
    return dict(name=second.name, seconds=second.total, ratio=sides, break_even_requests=turn) | said


def break_even(a: Candidate, b: Candidate) -> float | None:
    """Requests per start at which two candidates change places; None if they never do."""
    gained, paid = b.request - a.request, a.before - b.before
    return paid / gained if gained and paid / gained > 0 else None


def recorded(named: Sequence[Path] = ()) -> Tables:
    """The named tables; by default those of the notebooks whose metadata say `advice`."""
    wanted = list(named) or [paths.ROOT / "data" / f"{name}.csv" for name in notebooks.saying("advice")]
    return [(path.stem, *record.read(path)) for path in wanted]


def elsewhere(metas: Sequence[dict]) -> list[str]:
    """A remark if the trials were made on another machine."""
    places = [tuple(meta.get("environment", {}).get(key) for key in ("cpu", "cores")) for meta in metas]
    others = [place for place in dict.fromkeys(places) if place != (environment.cpu_model(), os.cpu_count())]
    return [f"it was measured on another machine ({cpu}, {cores} cores)" for cpu, cores in others]


def lines(advice: dict, wish: Wish) -> list[str]:
    """The recommendation in lines."""
    placement, evidence, second = advice["placement"], advice["evidence"], advice["runner_up"]
    start = "" if wish.warm else f" a start of {advice['start_seconds']:.2f} s and"
    many = "each request" if wish.requests > 1 else "one request"
    kinds = (("trials", "trial"), ("processes", "process"), ("cold_starts", "cold start"))
    words = [
        f"{placement}: {advice['seconds']:.2f} s,{start} {many} {advice['request_seconds']:.2f} s",
        f"by {', '.join(counted(evidence[key], what) for key, what in kinds)}: {evidence['where']}",
    ]
    if second:
        longer = f", {times(second['ratio'])} as long" if second["ratio"] else ""
        words.append(f"next: {second['name']}, {second['seconds']:.2f} s{longer}: {second['judged']}")
        if turn := second["break_even_requests"]:
            first, later = (placement, second["name"])[:: 1 if wish.requests < turn else -1]
            few = counted(int(turn), "request")
            by = "" if second["verdict"] in statistics.DIFFERENT else ", by the medians alone"
            words.append(f"of these two, {first} takes less time up to {few} a start, {later} beyond that{by}")
    words += [f"if {change['wish']}: {change['then']}" for change in advice["changes"]]
    words += [f"not {refused['name']}: {refused['reason']}" for refused in advice["refused"]]
    return words + [f"thin evidence: {doubt}" for doubt in advice["thin"]]
