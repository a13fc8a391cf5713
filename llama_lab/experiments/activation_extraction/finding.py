"""What extraction was found to gain: a sentence for its notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.wording import within
from llama_lab.experiments.activation_extraction import table as extraction_table
from llama_lab.experiments.activation_extraction import workers_table
from llama_lab.experiments.activation_extraction.passes import Extraction
from llama_lab.experiments.activation_extraction.rungs import CUT, TORCH
from llama_lab.experiments.activation_extraction.workers import ONE, Run


def claim(rows: Sequence[Extraction], seed: int = 0) -> Claim:
    """How many times as fast `extract` is as others that keep the same layers."""
    first = Comparison(extraction_table.like_for_like(rows, seed), "`extract`", "a careful first version", "speed")
    cut = extraction_table.rivals(rows, seed).get(CUT)
    other = Comparison(cut, "`extract`", "transformers, upper layers removed", "speed") if cut else first
    sentence = "With equal layers, `extract` is {first} times as fast as a first version"
    return (
        stated(
            sentence + " and {other} times as fast as transformers.",
            when=bool(cut),
            first=first,
            other=other,
        )
        or stated(sentence + ".", first=first)
        or first.generic
    )


def extraction(rows: Sequence[Extraction], seed: int = 0) -> str:
    """The claim, other implementations, and how near `extract` comes to its slower ceiling."""
    overlap = extraction_table.overlap(rows, seed=seed)
    whole = extraction_table.rivals(rows, seed).get(TORCH)
    depth = next((row.depth for row in rows if row.subject == TORCH), 0)
    return claim(rows, seed).text(
        Comparison(whole, "`extract`", f"transformers running all {depth} layers", "speed").words
        if whole and whole.n
        else "",
        f"`extract` reaches {overlap.value:.0%}{within(overlap, '.0%')} of the slower of its two ceilings"
        if overlap.n
        else "",
    )


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
        *(Comparison(e["ratio"], counted(e), "it", "speed").words for e in several),
        *(
            f"a unit costs {workers_table.milliseconds(cost)} of a worker under {subject}, below 2% from"
            f" {workers_table.smallest(cost.median, rate):,.0f} tokens on"
            for subject, cost in costs.items()
        ),
    )
