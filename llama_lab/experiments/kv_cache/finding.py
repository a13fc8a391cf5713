"""What a cache gains, and what a smaller one costs: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench import statistics
from llama_lab.bench.numbers import round_ratio
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Verdict
from llama_lab.experiments.kv_cache import measure


def kv_cache(case: dict, contexts: dict[int, statistics.Ratio], quality: Sequence[dict], model: str) -> str:
    """What a cache gains on the published case and at each context, and what a smaller one costs."""
    parts = [
        f"On GPT-2's shapes, all warm, a cache with jit makes a 15-token answer {case['both'].words} as fast"
        " as no cache without"
        f" jit, where {case['published']['ratio']:.2f}x was published, and {case['cache_alone'].words} as fast"
        " as no cache with"
        " jit"
    ]
    known = {n: r for n, r in contexts.items() if r.n}
    if known:
        first, last = min(known), max(known)
        parts.append(
            f"a jitted token of {model} with a cache comes {known[first].words} as fast as without after {first}"
            " tokens and"
            f" {known[last].words} after {last}"
        )
    small = next((e for e in quality if e["kv"] == "int8"), None)
    if small:
        parts.append(f"an int8 cache keeps the best token the same for {small['top1']:.1%} of {small['tokens']} tokens")
    return f"{claim(contexts)} {'; '.join(parts)}."


def claim(contexts: dict[int, statistics.Ratio]) -> str:
    """What a cache gains after few tokens and after many."""
    known = {n: r for n, r in contexts.items() if r.n}
    if not known:
        return "What a KV cache gains was not measured."
    first, last = known[min(known)], known[max(known)]
    if any(r.verdict != Verdict.FASTER for r in (first, last)):
        return "These trials do not decide at every length of text what a KV cache gains."
    said = f"With a KV cache a token comes {round_ratio(first.value)} times as fast"
    return said + (f" in a short text, {round_ratio(last.value)} times in a long." if last is not first else ".")


def growth(trials: Sequence[Trial], model: str, contexts: Sequence[int], seed: int = 0) -> str:
    """What a cache saves at each context."""
    found = {n: measure.saving(trials, model, n, seed) for n in sorted(contexts)}
    words = ", ".join(f"{ratio.words} after {n}" for n, ratio in found.items() if ratio.n)
    return f"Jitted, a token comes so much faster with a cache: {words or 'not measured'}."
