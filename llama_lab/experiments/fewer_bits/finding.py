"""What fewer bits were found to gain and to cost: a sentence for a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llama_lab.bench.claim import Claim, Comparison, fastest_beside
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import weights
from llama_lab.experiments.fewer_bits import table


def claim(trials: Sequence[Trial], entries: Mapping[int, Sequence[dict]], seed: int = 0) -> Claim:
    """The fastest placement beside llama.cpp on the same file. entries: context → `table.ladder`."""
    context = min(entries)
    mine, other = table.fastest(entries[context]), table.rival(entries[context], True)
    if mine is None or other is None:
        return Claim(
            f"Of what was measured here {mine['name']} decodes fastest." if mine else "No placement has a time."
        )
    ratio = table.ratio(trials, mine["name"], other["name"], context, seed)
    return fastest_beside(Comparison(ratio, mine["name"], "llama.cpp on the same file"))


def fewer_bits(trials: Sequence[Trial], entries: Mapping[int, Sequence[dict]], seed: int = 0) -> str:
    """The claim, and the fastest placement beside llama.cpp's fastest quantisation."""
    context = min(entries)
    mine, other = table.fastest(entries[context]), table.rival(entries[context], False)
    details = []
    if mine and other:
        ratio = table.ratio(trials, mine["name"], other["name"], context, seed)
        details = [Comparison(ratio, mine["name"], f"{other['name']} on {weights(other['dtype'])}").words]
    return claim(trials, entries, seed).text(*details)
