"""What the rows of `shapes` say: programs and seconds that each subject lost to compiling, and what padding cost
instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llama_lab.bench import compile_causes, frames, statistics, summary, workload
from llama_lab.experiments.shapes_and_recompilation import measure
from llama_lab.experiments.shapes_and_recompilation.measure import Served

NAN = float("nan")
SURPRISES = {
    measure.SAMPLING: "changed sampling settings",
    measure.COMMITTED: "reloaded weights",
    measure.LAST: "a smaller last batch",
}


@dataclass(frozen=True)
class Account:
    """What one subject's streams cost. Tuples hold one value a process, in the order of `blocks`; seconds are NaN where
    a row is void."""

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
    positions: int  # prompt positions that ran
    asked: int  # prompt tokens that were asked for
    why: str  # condensed cause of the first compilation after the first request; "" where there was none
    wrong: int  # cold rows whose tokens are not the reference's, or that failed
    void: int  # warm rows that do not count

    @property
    def padding(self) -> float:
        """Prompt positions that ran in vain, as a share of all that ran."""
        return 1 - self.asked / self.positions

    @property
    def rate(self) -> float:
        """Tokens/s once warm, over whole requests: prompts included."""
        return self.tokens / middle(self.warm)


def middle(values: Sequence[float]) -> float:
    """The median of what counts; NaN where nothing does."""
    known = [v for v in values if np.isfinite(v)]
    return float(np.median(known)) if known else NAN


def streams(rows: Sequence[Served], experiment: str, subject: str, phase: str) -> dict[int, list[Served]]:
    """The rows of a subject's streams by block, each in the order of its requests."""
    mine = [r for r in rows if (r.run, r.phase) == (f"{experiment}: {subject}", phase)]
    return dict(sorted(summary.grouped(sorted(mine, key=lambda r: r.order), "block").items()))


def seconds(stream: Sequence[Served]) -> float:
    """Latencies of a stream together; NaN where one of its rows does not count."""
    return sum(r.seconds for r in stream) if stream and all(r.valid for r in stream) else NAN


def account(rows: Sequence[Served], experiment: str, subject: str) -> Account:
    """Everything about one subject of an experiment. Raises KeyError when it has no row."""
    cold, warm = (streams(rows, experiment, subject, phase) for phase in ("cold", "warm"))
    if not cold:
        raise KeyError(f"{experiment}: {subject}")
    first = next(iter(cold.values()))
    every = [r for stream in cold.values() for r in stream]
    why = next((compile_causes.condense(r.cause) for r in first[1:] if r.cause), "")
    return Account(
        subject=subject,
        requests=len(first),
        blocks=tuple(cold),
        programs=programs(cold, 0),
        surprises=programs(cold, 1),
        lost=tuple(sum(r.compile_seconds for r in stream) for stream in cold.values()),
        later=tuple(sum(r.compile_seconds for r in stream[1:]) for stream in cold.values()),
        total=tuple(map(seconds, cold.values())),
        warm=tuple(seconds(warm.get(block, [])) for block in cold),
        tokens=sum(r.new_tokens * r.rows_asked for r in first),
        positions=sum(r.batch * r.padded_tokens for r in first),
        asked=sum(r.tokens_asked for r in first),
        why=why,
        wrong=sum(not r.valid for r in every),
        void=sum(not r.valid for stream in warm.values() for r in stream),
    )


def programs(cold: dict[int, list[Served]], since: int) -> int:
    """Programs compiled by the requests from `since` on: the median of the processes."""
    return int(np.median([sum(r.compiled for r in stream[since:]) for stream in cold.values()]))


def accounts(rows: Sequence[Served], experiment: str) -> list[Account]:
    """All subjects of an experiment, in its own order."""
    return [account(rows, experiment, subject) for subject in measure.SUBJECTS[experiment]]


def surprises(rows: Sequence[Served]) -> dict[str, tuple[Account, Account]]:
    """The streams beside the first by a short name: (as it is, cured)."""
    return {name: tuple(accounts(rows, experiment)) for experiment, name in SURPRISES.items()}


def by_request(rows: Sequence[Served], subject: str, experiment: str = measure.SHAPES) -> list[dict]:
    """One entry a request of the cold stream: {tokens: of its prompt, programs, seconds: lost to compiling}, medians of
    the processes."""
    together = zip(*streams(rows, experiment, subject, "cold").values(), strict=True)
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


def ratio(a: Account, b: Account, seed: int = 0, of: str = "total") -> statistics.Ratio:
    """Seconds of a's cold stream over b's (of="warm": of the warm ones), paired by block: what ran close in time."""
    below = dict(zip(b.blocks, getattr(b, of), strict=True))
    pairs = [(x, below.get(block, NAN)) for block, x in zip(a.blocks, getattr(a, of), strict=True)]
    known = [pair for pair in pairs if np.isfinite(pair).all()]
    return statistics.of_times(statistics.ratio([x for x, _ in known], [y for _, y in known], seed))


def ratios(subjects: Sequence[Account], seed: int = 0) -> dict[str, statistics.Ratio]:
    """Every other subject's total over the fastest one's."""
    best = fastest(subjects)
    return {a.subject: ratio(a, best, seed) for a in subjects if best and a is not best}


def parts(a: Account, useful: Account) -> dict[str, float]:
    """Where the seconds of a subject's typical cold stream went (the process of median total); they add up to that
    total.

    useful work: what exact lengths take once warm, in the same block. padding: what the subject's own warm stream takes
    more (a growing cache pads nothing, it copies). compiling: trace, lower and backend. rest: what else a first call
    costs.
    Raises ValueError when no stream counts.
    """
    whole = sorted((t, i) for i, t in enumerate(a.total) if np.isfinite(t) and np.isfinite(a.warm[i]))
    if not whole:
        raise ValueError(f"{a.subject} has no stream that counts")
    total, i = whole[(len(whole) - 1) // 2]
    same = dict(zip(useful.blocks, useful.warm, strict=True)).get(a.blocks[i], NAN)
    work = min(a.warm[i], same if np.isfinite(same) else middle(useful.warm))
    compiling = min(a.lost[i], max(0.0, total - a.warm[i]))
    return {
        "useful work": work,
        "padding": a.warm[i] - work,
        "compiling": compiling,
        "rest of first calls": max(0.0, total - a.warm[i] - compiling),
    }


def all_parts(subjects: Sequence[Account]) -> dict[str, dict[str, float]]:
    """`parts` of every subject that has a stream that counts."""
    useful = next(a for a in subjects if a.subject == workload.EXACT)
    return {a.subject: parts(a, useful) for a in subjects if np.isfinite(np.add(a.total, a.warm)).any()}


def repays(a: Account, b: Account) -> float:
    """Times that a's stream must come again until compiling more than b has paid for itself by warm requests that are
    faster.

    0 when a lost no more than b; infinite when its warm stream is no faster.
    """
    more, saved = middle(a.total) - middle(a.warm) - (middle(b.total) - middle(b.warm)), middle(b.warm) - middle(a.warm)
    return 0.0 if more <= 0 else more / saved if saved > 0 else float("inf")


def repays_words(a: Account, b: Account, seed: int = 0) -> str:
    """`repays` in a sentence, as far as the warm streams decide it."""
    times, warm = repays(a, b), ratio(a, b, seed, of="warm")
    if not np.isfinite([middle(a.total), middle(b.total), warm.value]).all():
        return "has no time to compare"
    if not times:
        return f"loses no more to first calls than {b.subject}"
    if warm.low > 1:
        return f"loses more to first calls than {b.subject} and is slower once warm: that is never paid back"
    if not warm.high < 1:
        return (
            f"loses more to first calls than {b.subject}; not shown to be faster once warm"
            f" (takes {warm.words} as long, n = {warm.n})"
        )
    return f"is level with {b.subject} once the same requests have come about {times:.0f} more times"


def cure_words(name: str, bad: Account, cured: Account) -> str:
    """What a cure saves in programs, and what it costs or saves once warm."""
    warm = ratio(cured, bad, of="warm")
    return (
        f"{name}: {bad.surprises} programs and {middle(bad.later):.1f} s after the first request,"
        f" {cured.surprises} once cured;"
        f" once warm, the cured stream takes {warm.words} as long, n = {warm.n}"
    )


def draws_words(rows: Sequence[Served]) -> str:
    """Whether static and traced settings drew the same tokens from the same seeds, where nothing was greedy."""
    drawn: dict[tuple[int, str], set[str]] = {}
    for r in rows:
        if (
            r.run.startswith(f"{measure.SAMPLING}: ")
            and measure.SETTINGS.get(r.change, measure.GREEDY) != measure.GREEDY
        ):
            drawn.setdefault((r.order, r.change), set()).add(r.tokens_sha256)
    same = sum(len(hashes) == 1 for hashes in drawn.values())
    return f"{same} of {len(drawn)} drawn answers have the same tokens under static and traced settings"


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
    """Why things were compiled, a pandas.DataFrame: one row a subject and kind of cause, with its first example.

    requests: of the cold streams, all processes together. JAX's own words are cut to `width`.
    """
    import pandas as pd

    kinds: dict[tuple[str, str], dict] = {}
    cold = [r for r in rows if r.phase == "cold" and r.cause]
    for r in sorted(cold, key=lambda r: (*place(r.run), r.order)):
        words = compile_causes.condense(r.cause)
        fresh = {
            "run": r.run,
            "cause": compile_causes.kinds(words),
            "requests": 0,
            "first example": words,
            "in JAX's words": compile_causes.quote(r.cause)[:width],
        }
        kinds.setdefault((r.run, fresh["cause"]), fresh)["requests"] += 1
    return pd.DataFrame(list(kinds.values()))


def place(run: str) -> tuple[int, int]:
    """Where a run stands among all experiments and their subjects."""
    experiment, _, subject = run.partition(": ")
    return list(measure.SUBJECTS).index(experiment), measure.SUBJECTS[experiment].index(subject)
