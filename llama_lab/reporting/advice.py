"""Which placement for this workload: recorded trials in, a recommendation out, with the trials behind it and what would
change it. For `llama-jax advise` and for notebooks.

A request takes its first token and (n - 1) times a token. A start takes what the first request of a fresh process took
beyond a warm one. Both are taken from the recorded run whose context is nearest; first tokens are scaled with the
length of the prompt.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from llama_jax.generate import bucket
from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, SAMPLED, environment, record, statistics
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import times
from llama_lab.reporting import notebooks

MAX_GAP_S = 0.25  # a reader who waits longer for the next words sees them come in lumps
FEW, FEW_STARTS = 6, 3  # trials, and cold starts, below which the evidence is called thin
BEYOND = 2.0  # and so it is where a size is further than this factor from what was measured


@dataclass(frozen=True)
class Wish:
    """requests: of each start of the process. streaming: tokens are wanted as they come. lengths: how many different
    prompt lengths come (each padded as `generate` pads it). warm: the process is there already, compiled. memory:
    bytes. exact: float32 tokens."""

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
    between two arrivals. peak: bytes. nan and None: not recorded."""

    name: str
    where: str
    seconds: dict[tuple[int, int], float]
    start: float
    program: float
    gap: float
    peak: int | None
    exact: bool
    starts: int
    processes: int
    distance: float  # the worse of two factors: prompt and new tokens from what was measured

    @property
    def request(self) -> float:
        return float(np.median([*self.seconds.values()]))

    def total(self, wish: Wish) -> float:
        """Seconds of a start and its requests; nan where no start was recorded and one is wanted."""
        return self.before(wish) + wish.requests * self.request

    def before(self, wish: Wish) -> float:
        """Seconds of it that do not depend on the number of requests."""
        return 0.0 if wish.warm else self.start + (buckets(wish) - 1) * self.program


@functools.cache
def buckets(wish: Wish) -> int:
    """Programs that prompts of so many lengths, the longest of them given, need when they are padded as `generate` pads
    them."""
    return min(wish.lengths, len({bucket(n) for n in range(1, wish.prompt_tokens + 1)}))


def candidates(tables: Iterable[tuple[str, Sequence[Trial]]], wish: Wish) -> list[Candidate]:
    """One candidate a placement, from the greedy run whose context is nearest to the wish. tables: (name, trials)
    each."""
    nearest: dict[str, Candidate] = {}
    for table, trials in tables:
        cold: dict[str, list[Trial]] = {}
        warm: dict[tuple[str, str], list[Trial]] = {}
        for t in trials:
            if not t.valid or t.backend != "jax" or t.batch != 1 or t.subject.endswith((SAMPLED, AGAIN)):
                continue
            if t.phase == "cold":
                cold.setdefault(t.subject, []).append(t)
            elif t.phase == "warm" and len(t.token_times_ns) > 1:
                warm.setdefault((t.run, t.subject), []).append(t)
        for (run, name), answers in warm.items():
            made = candidate(name, f"{table} ({run})", answers, cold.get(name, []), wish)
            if name not in nearest or made.distance < nearest[name].distance:
                nearest[name] = made
    return list(nearest.values())


def candidate(name: str, where: str, warm: Sequence[Trial], starts: Sequence[Trial], wish: Wish) -> Candidate:
    first, gap = (float(np.median([getattr(t, key) for t in warm])) for key in ("ttft", "tpot"))
    prompt = float(np.median([t.prompt_tokens for t in warm]))
    new = float(np.median([len(t.token_times_ns) for t in warm]))
    longer = [t.seconds - first - (len(t.token_times_ns) - 1) * gap for t in starts]
    compiled = [t.compile_seconds / t.compiled for t in starts if t.compiled]
    sizes = ((wish.prompt_tokens, prompt), (wish.new_tokens, new))
    return Candidate(
        name=name,
        where=where,
        seconds={
            (t.process, t.block): t.ttft * wish.prompt_tokens / prompt + (wish.new_tokens - 1) * t.tpot for t in warm
        },
        start=max(float(np.median(longer)), 0.0) if starts else math.nan,
        program=float(np.median(compiled)) if compiled else 0.0,
        gap=gap * together(warm[0], wish),
        peak=max((t.peak_rss_bytes for t in starts if t.peak_rss_bytes), default=None),
        exact=all((t.dtype, t.quantisation) == ("float32", "none") for t in warm),
        starts=len(starts),
        processes=len({t.process for t in warm}),
        distance=max(max(wished / measured, measured / wished) for wished, measured in sizes),
    )


def together(answer: Trial, wish: Wish) -> int:
    """Tokens that arrive at the same time: those of one call, of which a whole answer is one again."""
    times = answer.token_times_ns[1:]
    most = max(times.count(at) for at in dict.fromkeys(times))
    return wish.new_tokens - 1 if most == len(times) > 1 else most


def refusal(c: Candidate, wish: Wish) -> str:
    """Why a candidate does not do what is wished; "" where it does."""
    if wish.exact and not c.exact:
        return "its tokens are not float32's"
    if wish.streaming and c.gap > MAX_GAP_S:
        return f"tokens would come every {c.gap:.2g} s"
    if wish.memory is not None and (c.peak is None or c.peak > wish.memory):
        return "its memory was not recorded" if c.peak is None else f"it took {c.peak / 1e6:.0f} MB"
    if not wish.warm and math.isnan(c.start):
        return "no cold start of it was recorded"
    return ""


def ranked(known: Sequence[Candidate], wish: Wish) -> list[Candidate]:
    """Those that do what is wished, the quickest first."""
    return sorted((c for c in known if not refusal(c, wish)), key=lambda c: c.total(wish))


def compare(one: Candidate, other: Candidate, wish: Wish, seed: int = 0) -> statistics.Ratio | None:
    """Total seconds of one over the other's, paired by block, the verdict about the one; None where they did not run
    side by side."""
    both = sorted(set(one.seconds) & set(other.seconds)) if one.where == other.where else []
    if not both:
        return None
    above, below = ([c.before(wish) + wish.requests * c.seconds[pair] for pair in both] for c in (one, other))
    return statistics.of_times(statistics.ratio(above, below, seed, [process for process, _ in both]))


def break_even(a: Candidate, b: Candidate, wish: Wish) -> float | None:
    """Requests a start from which on the order of two candidates turns; None where it never does."""
    gained, paid = b.request - a.request, a.before(wish) - b.before(wish)
    return paid / gained if gained and paid / gained > 0 else None


def thin(c: Candidate, wish: Wish) -> list[str]:
    """Why not to lean too hard on what is known of a candidate."""
    doubts = {
        f"{c.name} was timed {counted(len(c.seconds), 'time')}": len(c.seconds) < FEW,
        f"{counted(c.starts, 'cold start')} of {c.name}": not wish.warm and c.starts < FEW_STARTS,
        f"{c.name} was timed in one process, whose luck is in no interval": c.processes < 2,
        f"prompt or answer are {c.distance:.1f} times as long or as short as what was timed of {c.name}": (
            c.distance > BEYOND
        ),
    }
    return [words for words, holds in doubts.items() if holds]


def counted(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "es" if what.endswith("s") else "s")


def changes(known: Sequence[Candidate], wish: Wish, best: Candidate) -> list[dict]:
    """{wish, then}: other wishes for which another placement would be recommended."""
    others = {
        "tokens are wanted as they come": replace(wish, streaming=True),
        "tokens may come all at once": replace(wish, streaming=False),
        "float32's tokens are wanted": replace(wish, exact=True),
        "tokens may be those of weights in fewer bits": replace(wish, exact=False),
        "the process runs already": replace(wish, warm=True),
        "the process starts for this": replace(wish, warm=False),
        "each start serves one request": replace(wish, requests=1),
        "each start serves 1,000 requests": replace(wish, requests=1000),
    }
    then = {words: ranked(known, other) for words, other in others.items() if other != wish}
    return [
        dict(wish=words, then=order[0].name) for words, order in then.items() if order and order[0].name != best.name
    ]


def advise(
    tables: Iterable[tuple[str, Sequence[Trial]]], wish: Wish, doubts: Sequence[str] = (), seed: int = 0
) -> dict:
    """The recommendation: {placement, seconds, start_seconds, request_seconds, evidence, thin, runner_up, changes,
    refused, ranking}.

    doubts: what else speaks against the evidence, such as another machine. Raises UserError where nothing recorded does
    what is wished.
    """
    known = candidates(tables, wish)
    order = ranked(known, wish)
    refused = [dict(name=c.name, reason=why) for c in known if (why := refusal(c, wish))]
    if not order:
        reasons = "; ".join(f"{r['name']}: {r['reason']}" for r in refused) or "there are no warm trials of placements"
        raise UserError(f"No recorded placement does what you wish ({reasons}); wish for less, or measure (--measure).")
    best, second = order[0], order[1] if len(order) > 1 else None
    return dict(
        placement=best.name,
        seconds=best.total(wish),
        start_seconds=best.before(wish),
        request_seconds=best.request,
        evidence=dict(where=best.where, trials=len(best.seconds), processes=best.processes, cold_starts=best.starts),
        thin=[*doubts, *thin(best, wish)],
        runner_up=second and beside(second, best, wish, seed),
        changes=changes(known, wish, best),
        refused=refused,
        ranking=[dict(name=c.name, seconds=c.total(wish), request_seconds=c.request, where=c.where) for c in order],
    )


def beside(second: Candidate, best: Candidate, wish: Wish, seed: int) -> dict:
    """The runner-up: {name, seconds, ratio, verdict, break_even_requests}. The ratio is None where the two did not run
    side by side."""
    ratio = compare(second, best, wish, seed)
    verdict = "not measured side by side" if ratio is None else ratio.verdict
    turn = None if wish.warm else break_even(best, second, wish)
    sides = ratio and dict(value=ratio.value, low=ratio.low, high=ratio.high, n=ratio.n)
    return dict(name=second.name, seconds=second.total(wish), ratio=sides, verdict=verdict, break_even_requests=turn)


def consult(tables: Sequence[tuple[str, Sequence[Trial], dict]], model: str, wish: Wish, seed: int = 0) -> dict:
    """`advise` by the trials of one model. tables: (name, trials, meta) each. Raises UserError where there are none,
    and as it does."""
    mine = [(name, [t for t in trials if t.model == model], meta) for name, trials, meta in tables]
    if not any(trials for _, trials, _ in mine):
        known = ", ".join(sorted({t.model for _, trials, _ in tables for t in trials})) or "nothing else"
        raise UserError(f"Nothing was recorded of {model} (but of {known}); measure it with --measure.")
    metas = [meta for _, trials, meta in mine if trials]
    return advise([(name, trials) for name, trials, _ in mine], wish, doubts(metas), seed)


def recorded(paths_: Sequence[Path] = ()) -> list[tuple[str, list, dict]]:
    """(name, trials, meta) of each table; where none is named, of the notebooks that say `advice`."""
    wanted = list(paths_) or [paths.ROOT / "data" / f"{name}.csv" for name in notebooks.saying("advice")]
    return [(path.stem, *record.read(path)) for path in wanted]


def doubts(metas: Sequence[dict]) -> list[str]:
    """Where the trials were made on another machine than this."""
    here = environment.capture()
    places = [[env.get(key) for key in ("cpu", "cores")] for env in (meta.get("environment", {}) for meta in metas)]
    others = [place for place in places if place != [here["cpu"], here["cores"]]]
    return list(dict.fromkeys(f"it was measured on another machine ({cpu}, {cores} cores)" for cpu, cores in others))


def lines(advice: dict, wish: Wish) -> list[str]:
    """The recommendation for people, one line each."""
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
        words.append(f"next: {second['name']}, {second['seconds']:.2f} s{longer} ({second['verdict']})")
        if turn := second["break_even_requests"]:
            first, later = (placement, second["name"])[:: 1 if wish.requests < turn else -1]
            few = counted(int(turn), "request")
            words.append(f"up to {few} a start {first} is ahead of the two, beyond that {later}")
    words += [f"if {change['wish']}: {change['then']}" for change in advice["changes"]]
    words += [f"not {refused['name']}: {refused['reason']}" for refused in advice["refused"]]
    return words + [f"thin: {doubt}" for doubt in advice["thin"]]
