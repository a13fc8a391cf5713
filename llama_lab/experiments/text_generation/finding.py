"""What the cache saves on one answer, and in what portions tokens come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_lab.bench import summary
from llama_lab.bench.record import Trial


def arrivals(trials: Sequence[Trial], cached: str, uncached: str, streams: Sequence[str]) -> str:
    """What the cache saves on one answer, and in what portions placements hand tokens over."""
    seconds = {name: [t.seconds for t in summary.warm(trials, name)] for name in (cached, uncached)}
    if not all(seconds.values()):
        return "The trials with and without a cache are not both valid, so there is nothing to compare."
    tokens = summary.warm(trials, cached)[0].new_tokens
    with_cache, without = (float(np.median(seconds[name])) for name in (cached, uncached))
    portions = [
        f"{portion(summary.warm(trials, name)[0])} under {name}" for name in streams if summary.warm(trials, name)
    ]
    return claim(trials, cached, uncached) + (
        f" The same {tokens} tokens take {with_cache:.2f} s with it and {without:.2f} s without (medians of"
        f" {len(seconds[cached])} and {len(seconds[uncached])} answers); after the first, tokens reach the reader "
        + ", ".join(portions)
        + "."
    )


def claim(trials: Sequence[Trial], cached: str, uncached: str) -> str:
    """How much longer the same answer takes where nothing is kept."""
    slow, fast = (np.median([t.seconds for t in summary.warm(trials, name)]) for name in (uncached, cached))
    return f"Without a KV cache, which keeps what was computed before, an answer takes {slow / fast:.1f} times as long."


def portion(trial: Trial) -> str:
    """How many tokens arrive at one moment at the most, the first token aside, in words."""
    _, counts = np.unique(trial.token_times_ns[1:], return_counts=True)
    largest = int(counts.max(initial=1))
    return (
        "one by one"
        if largest == 1
        else "all at once"
        if largest == len(trial.token_times_ns) - 1
        else f"{largest} at a time"
    )
