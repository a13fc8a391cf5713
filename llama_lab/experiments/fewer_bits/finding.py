"""What fewer bits were found to gain and to cost: a sentence for a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench import standings
from llama_lab.bench.numbers import within
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import fastest_beside, standing, weights
from llama_lab.experiments.fewer_bits import table
from llama_lab.experiments.fewer_bits.reading import ALL


def fewer_bits(
    trials: Sequence[Trial], entries: dict[int, Sequence[dict]], missing: Sequence[dict], seed: int = 0
) -> str:
    """The fastest placement beside llama.cpp, and what both arithmetics cost.

    entries: context → `table.ladder`. missing: subjects that did not run.
    """
    context = min(entries)
    mine = table.fastest(entries[context])
    if mine is None:
        return "No placement has a valid trial, so there is nothing to compare."
    rate, ratios = mine["decode"], []
    sentence = claim(trials, entries, seed) + (
        f" At context {context} the fastest placement, {mine['name']} on {weights(mine['dtype'])}, decodes"
        f" {rate.median:.1f} tokens/s"
    )
    sentence += within(rate, ".1f") + (
        f", {mine['mbu'].median:.0%} of what the fastest probe's bandwidth allows" if mine["mbu"].n else ""
    )
    labels = {"llama.cpp's fastest mode of the same file": True, "its fastest quantisation": False}
    for label, same_file in labels.items():
        other = table.rival(entries[context], same_file)
        if other and (same_file or other["name"] not in standings.SAME_FILE):
            ratios.append(standing(table.ratio(trials, mine["name"], other["name"], context, seed), label, other))
    sentence += ": " * bool(ratios) + " and ".join(ratios)
    far = [
        (e["name"], e["distance"][ALL])
        for e in (mine, table.rival(entries[context], True))
        if e and ALL in e["distance"]
    ]
    parts = (
        [", ".join(f"{name} is {d['kl']:.2g} nats{within(d, '.2g', 'kl_')} a token from float32" for name, d in far)]
        if far
        else []
    )
    if absent := [gap["name"] for gap in missing]:
        parts.append(f"{', '.join(absent)} {'was' if len(absent) == 1 else 'were'} not measured here")
    return "; ".join([sentence, *filter(None, parts)]) + "."


def claim(trials: Sequence[Trial], entries: dict[int, Sequence[dict]], seed: int = 0) -> str:
    """The fastest placement beside llama.cpp on the same file."""
    context = min(entries)
    mine, other = table.fastest(entries[context]), table.rival(entries[context], True)
    if mine is None or other is None:
        return f"Of what was measured here {mine['name']} decodes fastest." if mine else "Nothing has a valid trial."
    ratio = table.ratio(trials, mine["name"], other["name"], context, seed)
    return fastest_beside(mine["name"], ratio, "llama.cpp on the same file")
