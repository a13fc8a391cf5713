"""How many right endings each subject finds, beside its distance from float32; and whether their number tells them
apart."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from llama_lab.bench import frames
from llama_lab.bench.quality import REFERENCE
from llama_lab.bench.wording import interval, listed
from llama_lab.experiments.fewer_bits.accuracy import Choice
from llama_lab.experiments.fewer_bits.table import far

LEVEL = 0.05  # of all comparisons with float32 together


def table(rows: Sequence[Choice], distances: Sequence[dict]) -> list[dict]:
    """One entry per subject, in the order of the rows: {subject, n: sentences, right, accuracy, low, high: its 95%
    interval, lost: sentences that float32 has right and this one wrong, gained: the reverse, p: of both being equally
    likely, distance: as in `table.ladder`}.

    The interval is exact (Clopper and Pearson 1934, https://doi.org/10.1093/biomet/26.4.404), and so is the sign test
    of the sentences that differ (McNemar 1947, https://doi.org/10.1007/BF02295996).
    """
    from scipy import stats

    found = {name: {row.item: row.right for row in rows if row.subject == name} for name in subjects(rows)}
    entries = []
    for name, right in found.items():
        lost, gained = flips(found[REFERENCE], right)
        n, k = len(right), sum(right.values())
        ends = stats.binomtest(k, n).proportion_ci()
        p = float(stats.binomtest(gained, lost + gained).pvalue) if lost + gained else 1.0
        far_off = {d["text"]: d for d in distances if d["subject"] == name}
        about = dict(subject=name, n=n, right=k, accuracy=k / n, low=float(ends.low), high=float(ends.high))
        entries.append(about | dict(lost=lost, gained=gained, p=p, distance=far_off))
    return entries


def subjects(rows: Sequence[Choice]) -> list[str]:
    return list(dict.fromkeys(row.subject for row in rows))


def flips(first: dict[int, bool], second: dict[int, bool]) -> tuple[int, int]:
    """Items that are right in the first only, and in the second only."""
    both = first.keys() & second.keys()
    return sum(first[i] > second[i] for i in both), sum(first[i] < second[i] for i in both)


def guessed(rows: Sequence[Choice]) -> float:
    """The accuracy that guessing has on average."""
    return float(np.mean([1 / len(row.nll_pnat) for row in rows if row.subject == REFERENCE]))


def fewest(comparisons: int) -> int:
    """Flips, all one way, that a sign test needs to tell two subjects apart, one of so many comparisons."""
    return next(k for k in itertools.count(1) if 2 * 0.5**k * comparisons < LEVEL)


def words(entries: Sequence[dict], rows: Sequence[Choice]) -> list[str]:
    """What so many sentences can tell: whom they tell from float32 by accuracies whose intervals do not overlap, and
    whom by flips (Bonferroni over all other subjects); and what either needs. entries: of `table`."""
    if not entries:
        return ["No model chose an ending here."]
    exact, *others = entries
    said = f"{REFERENCE} finds the right ending of {exact['right']} of n = {exact['n']} sentences, "
    said = [said + f"{exact['accuracy']:.0%} {interval(exact, '.0%')} (guessing: {guessed(rows):.0%})."]
    if not others:
        return said
    apart = [e for e in others if e["high"] < exact["low"] or exact["high"] < e["low"]]
    known = counted([f"{e['subject']} ({e['accuracy']:.0%})" for e in apart], len(others))
    width = f"{REFERENCE}'s interval, {100 * (exact['high'] - exact['low']):.0f} points wide"
    which = "all of theirs" if not apart else "none of theirs" if len(apart) == len(others) else "the others"
    said.append(f"By accuracy they tell {known}: {width}, overlaps {which}.")
    told = [e for e in others if e["p"] * len(others) < LEVEL]
    nearest = min(others, key=lambda e: e["p"])
    close = f"; {flipped(nearest)} comes closest" * (not told and nearest["p"] < LEVEL)
    needed = f"at p < {LEVEL}/{len(others)}, which takes {fewest(len(others))} flips or more, all one way"
    return [*said, f"By flips they tell {counted([flipped(e) for e in told], len(others))}, {needed}{close}."]


def counted(names: Sequence[str], of: int) -> str:
    """`1 of the 13 others from it, torch-int8`; `none of the 13 others from it`."""
    return f"{len(names) or 'none'} of the {of} others from it{', ' * bool(names)}{listed(names)}"


def flipped(entry: dict) -> str:
    """`torch-int8 (12 lost, 2 gained, p = 0.013)`."""
    return f"{entry['subject']} ({entry['lost']} lost, {entry['gained']} gained, p = {entry['p']:.2g})"


COLUMNS = frames.Columns(
    {
        "subject": "subject",
        **frames.same("right", "n", "accuracy", "low", "high", "lost", "gained"),
        "sign test p": "p",
        "KL, nats": far("kl"),
    },
    index="subject",
    digits=4,
)
