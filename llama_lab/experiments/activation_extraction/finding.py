"""What extraction was found to gain: a sentence for its notebook."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from llama_lab.bench import summary
from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.statistics import Ratio
from llama_lab.bench.wording import listed, within
from llama_lab.experiments.activation_extraction import promises, workers_table
from llama_lab.experiments.activation_extraction import table as extraction_table
from llama_lab.experiments.activation_extraction.passes import LADDER, SECOND, Extraction
from llama_lab.experiments.activation_extraction.rungs import CEILINGS, CUT, FIRST, PACKED, TORCH, UNJITTED
from llama_lab.experiments.activation_extraction.workers import ONE, Run

WITHOUT = {FIRST: "the first version, same layers", CUT: "transformers without its upper layers"}


def claim(rows: Sequence[Extraction], seed: int = 0) -> Claim:
    """How many times as fast `extract` is as others that keep the same layers."""
    first = Comparison(extraction_table.like_for_like(rows, seed), "`extract`", WITHOUT[FIRST], "speed")
    cut = extraction_table.rivals(rows, seed).get(CUT)
    other = Comparison(cut, "`extract`", WITHOUT[CUT], "speed") if cut else first
    sentence = "With equal layers, packed `extract` has {first} times the rate of a padded first version"
    return (
        stated(
            sentence + ", {other} times that of transformers.",
            when=bool(cut),
            first=first,
            other=other,
        )
        or stated(sentence + ".", first=first)
        or first.generic
    )


def extraction(rows: Sequence[Extraction], seed: int = 0) -> str:
    """The claim, the rate, where its factor comes from, other implementations, how near `extract` comes to its slower
    ceiling, and whether the plan's total is tested."""
    rates = [*summary.rates(extraction_table.ladder(rows), extraction_table.PRODUCT).values()]
    whole = extraction_table.rivals(rows, seed).get(TORCH)
    depth = next((row.depth for row in rows if row.subject == TORCH), 0)
    return Claim(claim(rows, seed).sentence).text(
        f"the rate of `extract` is {summary.median(rates):,.0f} tokens/s" if rates else "",
        *with_equal_layers(rows, seed),
        *parts(rows, seed),
        filled(rows),
        rate_of(whole, "`extract`", f"transformers running all {depth} layers") if whole and whole.n else "",
        near_the_ceiling(rows, seed),
        untested(rows),
    )


def with_equal_layers(rows: Sequence[Extraction], seed: int = 0) -> list[str]:
    """The comparisons of the claim, a line each."""
    return [rate_of(c.ratio, c.subject, c.baseline) for c in claim(rows, seed).evidence]


def rate_of(ratio: Ratio, subject: str, baseline: str) -> str:
    """`extract: 2.17x [2.02, 2.32] the rate of transformers, faster, n = 3`."""
    return f"{subject}: {ratio.words} the rate of {baseline}, {ratio.judged}, n = {ratio.n}"


def parts(rows: Sequence[Extraction], seed: int = 0) -> list[str]:
    """The two steps of the factor over transformers: the first version over it, and packing into one fixed shape over
    that version."""
    ladder = extraction_table.ladder(rows)
    over = {"packing into one shape": PACKED, WITHOUT[FIRST]: FIRST, WITHOUT[CUT]: CUT}
    steps = [
        (summary.paired_ratio(ladder, over[name], over[below], seed), name, below)
        for below, name in itertools.pairwise(reversed(over))
    ]
    return [rate_of(*step) for step in steps if step[0].n]


def of_second(rows: Sequence[Extraction], seed: int = 0) -> str:
    """Whether `extract` gains more or less on the second model than on the ladder's, over either baseline; "" where
    that was not measured. Intervals that overlap show no difference."""
    said = []
    for base, name in WITHOUT.items():
        there, here = (
            summary.paired_ratio(extraction_table.ladder(rows, run), extraction_table.PRODUCT, base, seed)
            for run in (SECOND, LADDER)
        )
        if there.n and here.n:
            how = "less" if there.high < here.low else "no difference shown"
            how = "more" if there.low > here.high else how
            said.append(f"over {name}: {how}, {there.words} here, {here.words} on the ladder")
    return "; ".join(["`extract` " + said[0], *said[1:]]) if said else ""


def filled(rows: Sequence[Extraction]) -> str:
    """How much of what the model reads is text: of `extract` and of what it is compared with; "" where either is not
    measured."""
    over = {"`extract`": extraction_table.PRODUCT, "the first version": FIRST, "transformers": CUT}
    fills = {name: row.fill for name, of in over.items() for row in extraction_table.ladder(rows) if row.subject == of}
    said = [f"{fill:.0%} under {name}" for name, fill in fills.items()]
    return f"of the tokens that the model reads, text is {listed(said)}" if len(said) > 1 else ""


def near_the_ceiling(rows: Sequence[Extraction], seed: int = 0) -> str:
    """`extract` reaches 97% of its slower ceiling, `forward only` …, and how far that ceiling itself scatters."""
    overlap = extraction_table.overlap(rows, seed=seed)
    if not overlap.n:
        return ""
    reached = f"`extract` reaches {overlap.value:.0%}{within(overlap, '.0%')} of its slower ceiling"
    reached += f", `{name}`" if (name := one_ceiling(rows)) else ""
    rates = extraction_table.ceiling(rows).values()
    return f"{reached}, n = {overlap.n}; that ceiling itself spreads by {max(rates) / min(rates) - 1:.0%}"


def one_ceiling(rows: Sequence[Extraction]) -> str:
    """The ceiling that is the slower one in each block; "" where it is not the same one."""
    slower = extraction_table.ceiling(rows)
    alone = [summary.rates(extraction_table.ladder(rows), name) for name in CEILINGS]
    names = {name for name, own in zip(CEILINGS, alone, strict=True) for at, rate in slower.items() if own[at] == rate}
    return min(names) if len(names) == 1 else ""


def untested(rows: Sequence[Extraction]) -> str:
    """That the plan's total is not tested, where its starting point was not measured."""
    if any(row.subject == UNJITTED and row.valid for row in extraction_table.ladder(rows)):
        return ""
    total = promises.promised("gain", "potential")["promised"]
    return f"the plan's own starting point (`{UNJITTED}`) was not measured, so its total ({total}) is not tested"


def counted(e: dict) -> str:
    """`2 child processes`, `1 Ray actor`."""
    return f"{e['workers']} {e['subject'] if e['workers'] > 1 else e['subject'].removesuffix('s')}"


def workers(runs: Sequence[Run], seed: int = 0) -> str:
    """What several workers make of one process, what a unit costs each engine, and the tokens from which on that is
    below 2% of its time."""
    scaled, costs = workers_table.scaled(runs, seed), workers_table.overheads(runs, seed)
    if not (rate := workers_table.of_one(scaled)):
        return "No run of one process counts, so there is nothing to compare several workers with."
    several = [e for e in scaled if e["subject"] != ONE and e["ratio"].n]
    return Claim(f"One process writes {rate:,.0f} tokens/s.").text(
        *(rate_of(e["ratio"], counted(e), "one process") for e in several),
        *(
            f"a unit costs {workers_table.milliseconds(cost)} of a worker under {subject}, below 2% from"
            f" {workers_table.smallest(cost.median, rate):,.0f} tokens on"
            for subject, cost in costs.items()
        ),
    )
