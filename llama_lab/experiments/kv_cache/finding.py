"""The gain of a cache, and the cost of a smaller one: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.statistics import Ratio, Verdict


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
    """Which of the cache and jit gains more on the published case, as far as their intervals tell."""
    cache, jit = case["cache_alone"], case["jit_alone"]
    if not cache.n or not jit.n:
        return "Whether the cache or jit gains more was not measured."
    if cache.low > jit.high:
        return "The cache gains more than jit."
    more = "Jit gains more than the cache."
    return more if jit.low > cache.high else "Neither is shown to gain more: the intervals of cache and jit overlap."


def sped_up(small: Ratio) -> str:
    """Whether an int8 cache speeds up the decoder. small: its rate over that with a float32 cache."""
    does = "An int8 cache speeds up this decoder"
    doubt = f"Whether an int8 cache changes this decoder's rate is undecided{small.aside}"
    said = {Verdict.FASTER: does, Verdict.SLOWER: "An int8 cache slows down this decoder",
            Verdict.EQUAL: "An int8 cache leaves this decoder's rate as it is"}.get(small.verdict, doubt)  # fmt: skip
    return f"{said}: {small.words} of the rate with a float32 one, n = {small.n}."


def kv_cache(case: dict, contexts: Mapping[int, Ratio], quality: Sequence[dict]) -> str:
    """The claim, what a cache gains on the published case, and what a smaller one costs."""
    both, alone = (
        Comparison(case[key], "a 15-token answer on GPT-2's shapes with cache and jit", other, "speed")
        for key, other in (("both", "neither"), ("cache_alone", "jit without cache"))
    )
    small = next((e for e in quality if e["kv"] == "int8"), None)
    return claim(contexts).text(
        f"{both.words}, where {case['published']['ratio']:.2f}x was published with one side cold",
        alone.words,
        f"an int8 cache keeps the best token the same for {small['top1']:.1%} of {small['tokens']} tokens"
        if small
        else "",
    )
