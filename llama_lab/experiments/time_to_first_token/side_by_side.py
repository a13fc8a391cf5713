"""Subjects side by side: the tables of the notebook, and who is late in spite of fewer bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_lab.bench import frames
from llama_lab.bench.cold import Start
from llama_lab.bench.statistics import Verdict
from llama_lab.bench.wording import listed, named_well
from llama_lab.experiments.time_to_first_token import table


def entries(trials: Sequence[Start], seed: int = 0) -> list[dict]:
    """One entry per subject that was asked at all shared lengths, the best first: {subject, weights, and of each
    length `10 ms`, its median, and `10 over`, how many times as long it takes as the placement that is best there}."""
    at, kinds = table.shared_lengths(trials), table.weights(trials)
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
    at, kinds = max(table.shared_lengths(trials), default=0), table.weights(trials)
    ours = {kinds[name] for name in table.placements(trials)}
    found = [
        f"{named_well(r['peer'])} ({r['ratio'].words})"
        for r in table.ratios(trials, seed)
        if r["tokens"] == at and kinds[r["peer"]] not in ours and r["ratio"].verdict == Verdict.FASTER
    ]
    return listed(found) if found else "nobody"


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
)  # of `table.tails`
