"""What the rows of streams say: programs and seconds that each subject lost to compiling, and what padding cost
instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llama_lab.bench import compile_causes, frames, statistics, summary, workload
from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.bench.wording import listed
from llama_lab.experiments.shapes_and_recompilation import measure
from llama_lab.experiments.shapes_and_recompilation.measure import Served

NAN = float("nan")
ENOUGH = 3  # processes that an interval needs
CALLED = {  # a policy in a sentence, and whether a verb after it is singular
    workload.GROWING: ("a growing cache", True),
    workload.EXACT: ("exact lengths", False),
    workload.BUCKETS: ("the package's buckets", False),
    workload.POWERS: ("powers of two", False),
    workload.ONE: ("one shape", True),
}
SURPRISES = {
    measure.SAMPLING: "changed sampling settings",
    measure.COMMITTED: "reloaded weights",
    measure.LAST: "a smaller last batch",
}


@dataclass(frozen=True)
class Account:
    """What one subject's streams cost. Tuples hold one value per process, in the order of `blocks`; seconds are NaN
    where a row is void."""

    subject: str
    requests: int
    blocks: tuple[int, ...]
    programs: int  # compiled by a whole cold stream (median of the processes)
    surprises: int  # those among these after the stream's first request
    lost: tuple[float, ...]  # seconds of trace, lower and backend in the cold stream
    later: tuple[float, ...]  # those among these after the first request
    total: tuple[float, ...]  # seconds from request to last token, all cold requests together
    warm: tuple[float, ...]  # the same of the warm requests
    tokens: int  # new tokens that were asked for
    padding: float  # prompt positions that ran in vain, as a share of all that ran
    why: str  # condensed cause of the first compilation after the first request; "" if there was none
    wrong: int  # cold rows whose tokens are not the reference's, or that failed
    void: int  # warm rows that do not count

    @property
    def rate(self) -> float:
        """Tokens/s once warm, over whole requests: prompts included."""
        return self.tokens / middle(self.warm)


def middle(values: Sequence[float]) -> float:
    """The median of what counts; NaN if nothing does."""
    known = [v for v in values if np.isfinite(v)]
    return float(np.median(known)) if known else NAN


def streams(rows: Sequence[Served], experiment: str, subject: str, phase: str) -> dict[int, list[Served]]:
    """The rows of a subject's streams by block, each in the order of its requests."""
    mine = [r for r in rows if (r.run, r.phase) == (f"{experiment}: {subject}", phase)]
    return dict(sorted(summary.grouped(sorted(mine, key=lambda r: r.order), "block").items()))


def account(rows: Sequence[Served], experiment: str, subject: str) -> Account:
    """Everything about one subject of an experiment. Raises KeyError when it has no cold row."""
    cold, warm = (streams(rows, experiment, subject, phase) for phase in ("cold", "warm"))
    if not cold:
        raise KeyError(f"{experiment}: {subject}")
    first = next(iter(cold.values()))

    def programs(since: int) -> int:
        return int(np.median([sum(r.compiled for r in stream[since:]) for stream in cold.values()]))

    def lost(since: int) -> tuple[float, ...]:
        return tuple(sum(r.compile_seconds for r in stream[since:]) for stream in cold.values())

    def seconds(stream: Sequence[Served]) -> float:
        return sum(r.seconds for r in stream) if stream and all(r.valid for r in stream) else NAN

    return Account(
        subject=subject,
        requests=len(first),
        blocks=tuple(cold),
        programs=programs(0),
        surprises=programs(1),
        lost=lost(0),
        later=lost(1),
        total=tuple(map(seconds, cold.values())),
        warm=tuple(seconds(warm.get(block, [])) for block in cold),
        tokens=sum(r.new_tokens * r.rows_asked for r in first),
        padding=1 - sum(r.tokens_asked for r in first) / sum(r.batch * r.padded_tokens for r in first),
        why=next((compile_causes.condense(r.cause) for r in first[1:] if r.cause), ""),
        wrong=sum(not r.valid for stream in cold.values() for r in stream),
        void=sum(not r.valid for stream in warm.values() for r in stream),
    )


def accounts(rows: Sequence[Served], experiment: str) -> list[Account]:
    """All subjects of an experiment, in its own order."""
    return [account(rows, experiment, subject) for subject in measure.SUBJECTS[experiment]]


def surprises(rows: Sequence[Served]) -> dict[str, tuple[Account, Account]]:
    """The streams beside the first by a short name: (as it is, cured)."""
    return {name: tuple(accounts(rows, experiment)) for experiment, name in SURPRISES.items()}


def by_request(rows: Sequence[Served], subject: str) -> list[dict]:
    """One entry per request of the cold stream of `shapes`: {tokens: of its prompt, programs, seconds: lost to
    compiling}, medians of the processes."""
    together = zip(*streams(rows, measure.SHAPES, subject, "cold").values(), strict=True)
    return [
        dict(
            tokens=same[0].prompt_tokens,
            programs=int(np.median([r.compiled for r in same])),
            seconds=float(np.median([r.compile_seconds for r in same])),
        )
        for same in together
    ]


def fastest(subjects: Sequence[Account]) -> Account | None:
    """The subject that served its cold stream in the least time (median of its processes); None when no stream
    counts."""
    return min((a for a in subjects if np.isfinite(middle(a.total))), key=lambda a: middle(a.total), default=None)


def ratio(a: Account, b: Account, seed: int = 0, of: str = "total") -> Ratio:
    """Seconds of a's cold stream over b's (of="warm": of the warm ones), paired by block: what ran close in time."""
    above, below = (
        {block: s for block, s in zip(x.blocks, getattr(x, of), strict=True) if np.isfinite(s)} for x in (a, b)
    )
    both = [block for block in above if block in below]
    times = statistics.ratio([above[block] for block in both], [below[block] for block in both], seed)
    return statistics.of_times(times)


def ratios(subjects: Sequence[Account], seed: int = 0) -> dict[str, Ratio]:
    """Every other subject's total over the fastest one's."""
    best = fastest(subjects)
    return {a.subject: ratio(a, best, seed) for a in subjects if best and a is not best}


def called(subject: str) -> str:
    """A policy in a sentence: `a growing cache`."""
    return CALLED.get(subject, (subject, True))[0]


def single(subject: str) -> bool:
    """Whether a verb after a policy is singular."""
    return CALLED.get(subject, (subject, True))[1]


def does(subject: str, verb: str) -> str:
    """`a growing cache takes`, `powers of two take`: a policy and a verb, which is given in the plural."""
    return f"{called(subject)} {verb}{'s' * single(subject)}"


def parts(subjects: Sequence[Account]) -> dict[str, dict[str, float]]:
    """Where the seconds of each subject's typical cold stream went (the process of median total); they add up to that
    total. A subject without a stream that counts is left out.

    work: what the same process took once warm. compiling: trace, lower and backend. rest: what else a first call costs.
    """
    entries = {}
    for a in subjects:
        if whole := sorted((t, i) for i, t in enumerate(a.total) if np.isfinite(t) and np.isfinite(a.warm[i])):
            total, i = whole[(len(whole) - 1) // 2]
            warm = a.warm[i]
            compiling = min(a.lost[i], max(0.0, total - warm))
            rest = max(0.0, total - warm - compiling)
            entries[a.subject] = {"work": warm, "compiling": compiling, "rest of first calls": rest}
    return entries


def warm_parts(subjects: Sequence[Account]) -> dict[str, dict[str, float]]:
    """The seconds of each subject's warm stream (median of its processes). useful work: what exact lengths take, or
    less. Beyond that: padding, or copying for a growing cache, which pads nothing. A subject without a warm time is
    left out."""
    useful = middle(next(a for a in subjects if a.subject == workload.EXACT).warm)
    entries = {}
    for a in subjects:
        if np.isfinite(warm := middle(a.warm)):
            work = min(warm, useful) if np.isfinite(useful) else warm
            more = "copying" if a.subject == workload.GROWING else "padding"
            entries[a.subject] = {"useful work": work, more: warm - work}
    return entries


def answer_words(subjects: Sequence[Account]) -> str:
    """Whether the padding of one shape costs more than the compilations of exact lengths, and what the dearest policy
    costs once warm; "" where either has no time."""
    known, warm = {a.subject: a for a in subjects}, warm_parts(subjects)
    one, exact = known.get(workload.ONE), known.get(workload.EXACT)
    if not {workload.ONE, workload.EXACT} <= warm.keys():
        return ""
    padding, compiling = warm[one.subject]["padding"], middle(exact.lost)
    most = max(warm, key=lambda name: sum(warm[name].values()))
    longer = sum(warm[most].values()) / sum(warm[exact.subject].values()) - 1
    return (
        f"{'Yes' if padding > compiling else 'No'}: the padding of one shape costs {padding:.2f} s, the compilations of"
        f" exact lengths {compiling:.1f} s.\n"
        f"Once warm, {does(most, 'take')} longest, {longer:.0%} longer than exact lengths."
    )


def paying(subjects: Sequence[Account], seed: int = 0) -> str:
    """Which policies are shown to earn back, by faster warm requests, what they compile beyond the fastest in a fresh
    process, and for which that is not shown; "" where there is nothing to compare."""
    best = fastest(subjects)
    rivals = [a for a in subjects if best and a is not best and a.programs > best.programs and middle(a.warm) > 0]
    if not rivals:
        return ""
    shown = [a for a in rivals if ratio(a, best, seed, of="warm").high < 1]
    names, others = (
        listed([called(a.subject) for a in group]) for group in (shown, [a for a in rivals if a not in shown])
    )
    begun = f"Shown to be faster than {best.subject} once warm, so that compiling more can pay: {names or 'no policy'}"
    return f"{begun}; not shown for {others}." if others else f"{begun}."


def repays_words(a: Account, b: Account, seed: int = 0) -> str:
    """How many times a's stream must come again until compiling more than b has paid for itself by warm requests that
    are faster: in a sentence, as far as the warm streams decide it."""
    more = middle(a.total) - middle(a.warm) - (middle(b.total) - middle(b.warm))
    saved = middle(b.warm) - middle(a.warm)
    warm = ratio(a, b, seed, of="warm")
    if not np.isfinite([middle(a.total), middle(b.total), warm.value]).all():
        return "has no time to compare"
    if more <= 0:
        return f"loses no more to first calls than {b.subject}"
    if warm.low > 1:
        return f"loses more to first calls than {b.subject} and is slower once warm: that is never paid back"
    if not warm.high < 1:
        return (
            f"loses more to first calls than {b.subject}; not shown to be faster once warm"
            f" (takes {warm.words} as long, n = {warm.n})"
        )
    repeats = max(0.0, more / saved - 1) if saved > 0 else float("inf")  # the cold stream has saved once already
    return f"catches up with {b.subject} after about {repeats:.0f} repeats (warm {warm.words} as long, n = {warm.n})"


def cure_words(name: str, bad: Account, cured: Account) -> str:
    """What a cure saves in programs, and what it costs or saves once warm."""
    warm = ratio(cured, bad, of="warm")
    few = warm.n < ENOUGH  # an interval of so few processes says nothing
    said = (
        f"{name}: {bad.surprises} programs and {middle(bad.later):.1f} s after the first request,"
        f" {cured.surprises} once cured"
    )
    return said if few else f"{said}; once warm, the cured stream takes {warm.words} the time (n = {warm.n})"


def watched_words(rows: Sequence[Served], notes: Sequence[dict]) -> str:
    """How much of the CPU other programs took while the processes ran, and from which most; "" if nobody watched.
    notes: of the processes, in a table's meta."""
    shares = {note["process"]: note["watch"]["others_cpu"] for note in notes if "watch" in note}
    known = {process: share for process, share in shares.items() if share != "unknown"}
    if len(known) < 2:
        return ""
    (worst, most), (_, second) = sorted(known.items(), key=lambda item: -item[1])[:2]
    experiment, _, subject = next((r.run for r in rows if r.process == worst), "").partition(": ")
    said = f"other programs used at most {most:.0%} of the CPU, in one of {len(known)} processes"
    return f"{said} ({SURPRISES.get(experiment, subject)}); in the others at most {second:.0%}"


def draws_words(rows: Sequence[Served]) -> str:
    """Whether static and traced settings drew the same tokens from the same seeds, where nothing was greedy."""
    asked = [r for r in rows if r.run.startswith(f"{measure.SAMPLING}: ") and r.change != "greedy"]
    drawn = summary.grouped(asked, lambda r: (r.order, r.change), "tokens_sha256").values()
    same = sum(len(set(hashes)) == 1 for hashes in drawn)
    return f"{same} of {len(drawn)} drawn answers have the same tokens under static and traced settings"


def claim(policies: Sequence[Account], seed: int = 0) -> Claim:
    """Which shape policy serves a new process's requests fastest, and what the slowest takes beside it."""
    best, over_best = fastest(policies), ratios(policies, seed)
    known = [a for a in policies if a.subject in over_best and over_best[a.subject].n]
    if not known:
        return Claim(f"Only {best.subject} made the right tokens." if best else "No policy made the right tokens.")
    others = [Comparison(over_best[a.subject], a.subject, best.subject, "time of all requests") for a in known]
    slowest, longer = max(zip(known, others, strict=True), key=lambda pair: middle(pair[0].total))
    said = "A new server is fastest with {best}; {takes} {longer:slower} times as long: {many} programs, not {few}."
    holds = slowest.programs > best.programs and all(c.outcome == Verdict.SLOWER for c in others)
    numbers = dict(best=called(best.subject), takes=does(slowest.subject, "take"), longer=longer)
    return stated(said, when=holds, many=slowest.programs, few=best.programs, **numbers) or longer.generic


def medians_words(subjects: Sequence[Account]) -> str:
    """That ratios are means of pairs, and what the medians of the slowest and the fastest policy give instead; "" where
    fewer than two have a time."""
    times = {a.subject: middle(a.total) for a in subjects if np.isfinite(middle(a.total))}
    if len(times) < 2:
        return ""
    most, least = max(times, key=times.get), min(times, key=times.get)
    return (
        f"over the first {subjects[0].requests} requests of a process the medians, {times[most]:.1f} and"
        f" {times[least]:.1f} s, give {times[most] / times[least]:.2f}: the ratio above is a mean over rounds"
    )


COLUMNS = frames.Columns(
    {
        "subject": "subject",
        "programs": "programs",
        "after the first request": "surprises",
        "lost to compiling, s": lambda a: middle(a.lost),
        "served in, s": lambda a: middle(a.total),
        "warm, s": lambda a: middle(a.warm),
        "warm tokens/s": "rate",
        "padding": lambda a: f"{a.padding:.0%}",
        "processes": lambda a: len(a.blocks),
        "tokens": lambda a: "wrong" if a.wrong else "equal",
        "warm rows void": "void",
    },
    index="subject",
    digits=2,
)


def cause_frame(rows: Sequence[Served], width: int = 300):
    """Why things were compiled, a pandas.DataFrame: one row per subject and kind of cause, with its first example.

    JAX's own words are cut to `width`.
    """
    import pandas as pd

    runs = [f"{experiment}: {subject}" for experiment, names in measure.SUBJECTS.items() for subject in names]
    cold = sorted((r for r in rows if r.phase == "cold" and r.cause), key=lambda r: (runs.index(r.run), r.order))
    words = [(r.run, compile_causes.condense(r.cause), compile_causes.quote(r.cause)[:width]) for r in cold]
    frame = pd.DataFrame(words, columns=["run", "first example", "in JAX's words"])
    frame.insert(1, "cause", frame["first example"].map(compile_causes.kinds))
    frame.insert(2, "requests, all processes", frame.groupby(["run", "cause"])["cause"].transform("size"))
    return frame.drop_duplicates(["run", "cause"], ignore_index=True)
