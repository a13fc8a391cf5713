"""Subjects side by side: the tables of the notebook, and who is late in spite of fewer bits."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from llama_lab.bench import frames, intervals, standings, summary
from llama_lab.bench.cold import Start
from llama_lab.bench.statistics import Verdict
from llama_lab.bench.wording import listed, named_well
from llama_lab.experiments.time_to_first_token import table
from llama_lab.experiments.time_to_first_token.measure import TAIL, WARM

ROUNDED = "rounded again"


def interleaved(trials: Sequence[Start]) -> list[Start]:
    """The warm requests in which all subjects were asked side by side: those of a tail came at another time, beside
    fewer subjects."""
    return [t for t in trials if t.run == WARM]


def tails(trials: Sequence[Start], seed: int = 0) -> list[dict]:
    """`table.tails` of the requests of tails alone; of all where there are none."""
    return table.tails([t for t in trials if t.run == TAIL] or trials, seed)


def kept(trials: Sequence[Start]) -> dict[str, str]:
    """Subject → what its weights are kept as; of a runtime that rounds the file's weights once more, that it does."""
    backends, kinds = {t.subject: t.backend for t in trials}, table.weights(trials)
    return {name: f"{kind} {ROUNDED}" * (backends[name] == standings.OPENVINO) or kind for name, kind in kinds.items()}


def entries(trials: Sequence[Start], seed: int = 0) -> list[dict]:
    """One entry per subject that was asked at all shared lengths, the best first: {subject, weights, and of each
    length `10 ms`, its median, and `10 over`, how many times as long it takes as the placement that is best there}."""
    trials = interleaved(trials)
    at, kinds = table.shared_lengths(trials), kept(trials)
    first = {n: table.best(trials, table.placements(trials), [n]) for n in at}
    found = []
    for name in table.placements(trials) + table.rivals(trials):
        medians = {n: table.middle(trials, name, n) for n in at}
        e = dict(subject=name, weights=kinds[name], mean=np.mean(np.log([*medians.values()])))
        for n, mine in first.items():
            e[f"{n} ms"] = medians[n]
            e[f"{n} over"] = table.sooner(trials, mine, name, n, seed).words if mine not in (None, name) else "1"
        found.append(e)
    return sorted(found, key=lambda e: e["mean"])


def columns(at: Sequence[int]) -> frames.Columns:
    """Of `entries`. at: `shared_lengths`."""
    shown = {name: f"{n} {key}" for n in at for name, key in ((f"{n} tokens, ms", "ms"), (f"{n}, ratio", "over"))}
    return frames.Columns({**frames.same("subject", "weights"), **shown}, index="subject", digits=1)


def late(trials: Sequence[Start], seed: int = 0) -> str:
    """`llama.cpp (2.55x [2.40, 2.72]) and llama.cpp+q8_0 (…)`: the peers on weights that no placement
    reads whose first token after the longest prompt is later than the best placement's."""
    trials = interleaved(trials)
    at, kinds = max(table.shared_lengths(trials), default=0), table.weights(trials)
    ours = {kinds[name] for name in table.placements(trials)}
    found = [
        f"{named_well(r['peer'])} ({r['ratio'].words})"
        for r in table.ratios(trials, seed)
        if r["tokens"] == at and kinds[r["peer"]] not in ours and r["ratio"].verdict == Verdict.FASTER
    ]
    return listed(found) if found else "nobody"


def tail_words(entries: Sequence[dict]) -> list[str]:
    """How much longer the P95 is than the median, in ms and as a factor, a line per subject. entries: of
    `tails`."""
    lines = []
    for name, found in summary.grouped((e for e in entries if e["p95"] is not None), itemgetter("subject")).items():
        less = ", ".join(f"{e['p95'] - e['p50']:.0f} at {e['tokens']}" for e in found)
        over = ", ".join(f"{e['p95'] / e['p50']:.2f} at {e['tokens']}" for e in found)
        lines.append(f"{named_well(name)}, P95 less the median, ms: {less} tokens; P95 over the median: {over} tokens")
    return lines


def over_median(e: dict) -> float:
    """The P95 over the median. e: of `tails`."""
    return e["p95"] / e["p50"]


def tail_interval(e: dict) -> tuple[float, float]:
    """95% interval of `over_median`."""

    def over(values, axis=-1):
        return np.percentile(values, 95, axis) / np.median(values, axis)

    return intervals.bootstrap([e["points"]["ms"]], over, 0, resamples=intervals.MEDIANS, method="percentile")


def largest_tail(entries: Sequence[dict]) -> str:
    """After how many tokens each subject's tail is the largest share of its median, and of how many of its other bands
    that band is clear; "" where no subject has two. entries: of `tails`."""
    held = summary.grouped((e for e in entries if e["p95"] is not None), itemgetter("subject"))
    most, clear, others = [], 0, 0
    for found in held.values():
        if len(found) > 1:
            most.append(top := max(found, key=over_median))
            least, rest = tail_interval(top)[0], [e for e in found if e is not top]
            clear, others = clear + sum(tail_interval(e)[1] < least for e in rest), others + len(rest)
    at = list(dict.fromkeys(e["tokens"] for e in most))
    if len(at) == 1:
        where = f"of each subject is largest at {at[0]} tokens"
    else:
        where = "is largest at " + listed([f"{e['tokens']} tokens under {named_well(e['subject'])}" for e in most])
    apart = f"its interval there is apart from {clear} of the {others} at other lengths"
    return f"as a share of the median the tail {where}; {apart}" if most else ""


def near_limit(trials: Sequence[Start], subject: str, limits: dict[int, float]) -> str:
    """`at 10 tokens step exact takes 5.1 times the float32 limit (52.5 of 10.3 ms), at 400 1.5 times (634 of 426 ms)`.
    limits: `table.limits`."""
    trials = interleaved(trials)
    at = [n for n in table.shared_lengths(trials) if n in limits and np.isfinite(table.middle(trials, subject, n))]
    found = [(n, table.middle(trials, subject, n), limits[n]) for n in dict.fromkeys([*at[:1], *at[-1:]])]
    said = [(f"at {n} tokens", f"{ms / least:.1f} times", f"({ms:.3g} of {least:.3g} ms)") for n, ms, least in found]
    if not said:
        return f"{subject} has no valid first token"
    (first, times, of), *others = said
    return f"{first} {subject} takes {', '.join([f'{times} the float32 limit {of}', *map(' '.join, others)])}"


TAILS = frames.Columns(
    {
        **frames.same("tokens", "subject"),
        "P50": "p50",
        "P95": frames.percentile(95, "p95"),
        "P99": frames.percentile(99, "p99"),
        "n": "n",
    },
    index=("tokens", "subject"),
    digits=1,
)  # of `tails`
