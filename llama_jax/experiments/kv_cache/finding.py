"""What a cache gains, and what a smaller one costs: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_jax.bench import statistics


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
    return "; ".join(parts) + "."
