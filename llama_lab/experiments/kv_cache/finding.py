"""The gain of a cache, and the cost of a smaller one: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.published import standing
from llama_lab.bench.statistics import Ratio


def by_context(contexts: Mapping[int, Ratio]) -> list[Comparison]:
    """A token with a cache beside one without, after each number of tokens that has trials."""
    return [Comparison(contexts[n], "a jitted token with a cache", f"one without after {n} tokens", "speed")
            for n in sorted(contexts) if contexts[n].n]  # fmt: skip


def claim(contexts: Mapping[int, Ratio]) -> Claim:
    """What a cache gains after few tokens and after many."""
    if not (known := by_context(contexts)):
        return Claim("What a KV cache gains was not measured.")
    few, many = (pick(n for n in contexts if contexts[n].n) for pick in (min, max))
    words = "With a KV cache a token comes {first} times as fast after {few} tokens, {last} times after {many}."
    return stated(words, when=len(known) > 1, first=known[0], last=known[-1], few=few, many=many) or known[-1].generic


def larger(case: dict) -> str:
    """Whether the cache or jit gains more on the published case, as far as their intervals tell."""
    cache, jit = case["cache_alone"], case["jit_alone"]
    if not cache.n or not jit.n:
        return "which of the two gains more was not measured"
    if cache.low > jit.high:
        return "the cache gains more"
    return "jit gains more" if jit.low > cache.high else "their intervals overlap, so neither is shown to gain more"


def kv_cache(case: dict, contexts: Mapping[int, Ratio], quality: Sequence[dict]) -> str:
    """The claim, what a cache gains on the published case, and what a smaller one costs."""
    both, alone = (
        Comparison(case[key], "a 15-token answer on GPT-2's shapes with cache and jit", other, "speed")
        for key, other in (("both", "neither"), ("cache_alone", "jit without cache"))
    )
    where = standing("kv-cache", "speed-up, long warm-up")
    small = next((e for e in quality if e["kv"] == "int8"), None)
    return claim(contexts).text(
        f"{both.words}, where {case['published']['ratio']:.2f}x was published ({where})",
        alone.words,
        f"an int8 cache keeps the best token the same for {small['top1']:.1%} of {small['tokens']} tokens"
        if small
        else "",
    )
