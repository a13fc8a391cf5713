"""What the cache saves on one answer, and in what portions tokens come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_jax.bench import summary
from llama_jax.bench.record import Trial


def arrivals(trials: Sequence[Trial], cached: str, uncached: str, streams: Sequence[str]) -> str:
    """What the cache saves on one answer, and in what portions placements hand tokens over."""
    seconds = {name: [t.seconds for t in summary.warm(trials, name)] for name in (cached, uncached)}
    if not all(seconds.values()):
        return "The trials with and without a cache are not both valid, so there is nothing to compare."
    tokens = summary.warm(trials, cached)[0].new_tokens
    with_cache, without = (float(np.median(seconds[name])) for name in (cached, uncached))
    portions = [
        f"{name} hands {portion(summary.warm(trials, name)[0])} at a time"
        for name in streams
        if summary.warm(trials, name)
    ]
    return (
        f"The same {tokens} tokens take {with_cache:.2f} s with a KV cache and {without:.2f} s without one,"
        f" {without / with_cache:.1f} times as long (medians of {len(seconds[cached])} and"
        f" {len(seconds[uncached])} answers); " + ", ".join(portions) + " to the reader."
    )


def portion(trial: Trial) -> str:
    """Most tokens that arrive at one moment, the first token aside."""
    _, counts = np.unique(trial.token_times_ns[1:], return_counts=True)
    largest = int(counts.max(initial=1))
    return (
        "one token"
        if largest == 1
        else "all tokens"
        if largest == len(trial.token_times_ns) - 1
        else f"{largest} tokens"
    )
