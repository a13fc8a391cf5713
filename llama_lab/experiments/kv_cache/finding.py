"""The gain of a cache, and the cost of a smaller one: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llama_lab.bench import summary
from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.bench.wording import listed, within
from llama_lab.experiments.kv_cache.measure import FIFTEEN, after, published_case


def as_fast(ratio: Ratio, case: str, how: str) -> str:
    """`jitted, after 32 tokens: 3.49x [3.43, 3.56] as fast with a cache, n = 5`; any other verdict than faster."""
    judged = f", {ratio.judged}" * (ratio.judged != Verdict.FASTER)
    return f"{case}: {ratio.words} as fast with {how}{judged}, n = {ratio.n}"


@dataclass(frozen=True)
class Saving(Comparison):
    """A jitted token with a cache beside one without, after so many tokens."""

    tokens: int = 0

    @property
    def words(self) -> str:
        return as_fast(self.ratio, f"jitted, after {self.tokens} tokens", "a cache")


def saving(trials: Sequence[Trial], model: str, context: int, seed: int = 0) -> Ratio:
    """Decode rate of a jitted step with a cache over one without, after prompts of one length."""
    here = [t for t in trials if t.run == after(model, context)]
    return summary.paired_ratio(here, "step", "step+nocache", seed)


def by_context(contexts: Mapping[int, Ratio]) -> list[Saving]:
    """A token with a cache beside one without, after each number of tokens that has trials."""
    return [Saving(contexts[n], "a jitted token with a cache", f"one without after {n} tokens", "speed", n)
            for n in sorted(contexts) if contexts[n].n]  # fmt: skip


def claim(contexts: Mapping[int, Ratio], model: str = "") -> Claim:
    """What a cache gains a model after few tokens and after many."""
    if not (known := by_context(contexts)):
        return Claim("What a KV cache gains was not measured.")
    few, many = (pick(n for n in contexts if contexts[n].n) for pick in (min, max))
    words = "With a KV cache, jitted decoding{of} is {first} times as fast after {few} tokens, {last} after {many}."
    numbers = dict(of=f" of {model}" if model else "", first=known[0], last=known[-1], few=few, many=many)
    return stated(words, when=len(known) > 1, **numbers) or known[-1].generic


def computed(trials: Sequence[Trial], model: str) -> str:
    """How many positions a token computes without a cache: all of the buffer, as a program of one shape does; "" where
    none was measured."""
    plain = (t for t in trials if t.run == after(model, t.prompt_tokens) and t.subject == "step+nocache")
    slots = {t.prompt_tokens: t.cache_slots for t in sorted(plain, key=lambda t: t.prompt_tokens)}
    each = listed([f"{size:,} after {tokens}" for tokens, size in slots.items()])
    return f"without a cache a token computes all positions of its buffer, empty ones too: {each}" if each else ""


def growth(series: Mapping[str, Mapping[int, Sequence[float]]]) -> list[str]:
    """How the time of a token grows from the shortest text to the longest: with a cache, and how much longer eager
    takes than jit without one. series: of `measure.latencies`."""
    ms = {name: {n: float(np.median(some)) for n, some in points.items()} for name, points in series.items()}
    lines = []
    if len(ms["step"]) > 1:
        few, many = min(ms["step"]), max(ms["step"])
        longer = ms["step"][many] / ms["step"][few]
        lines.append(f"{many / few:.0f} times the text takes {longer:.2f} times as long with a cache and jit")
    if len(both := sorted(ms["step+nocache"].keys() & ms["eager+nocache"].keys())) > 1:
        first, last = (f"{ms['eager+nocache'][n] / ms['step+nocache'][n]:.1f}" for n in (both[0], both[-1]))
        lines.append(f"without a cache eager takes {first} times as long as jit after {both[0]} tokens, "
                     f"{last} times after {both[-1]}")  # fmt: skip
    return lines


def by_bytes(ratio: Ratio, mine: str, other: str, share: float) -> str:
    """Whether weights in fewer bytes decode faster than others. share: of the others' bytes."""
    said = {Verdict.FASTER: "and is faster", Verdict.SLOWER: "but is slower", Verdict.EQUAL: "but is as fast"}
    words = said.get(ratio.verdict, "but is not shown to be faster")
    return f"{mine} has {share:.0%} of {other}'s bytes, {words}: {ratio.words}, n = {ratio.n}"


def larger(trials: Sequence[Trial], seed: int = 0) -> str:
    """Which of the cache and jit gains more on the published case: both gains have the same numerator, so the pairs of
    each without the other decide."""
    here = [t for t in trials if t.run == FIFTEEN]
    pairs = summary.paired_ratio(here, "step+nocache", "eager", seed, lambda t: t.new_tokens / t.seconds)
    if not pairs.n:
        return "Whether the cache or jit gains more was not measured."
    said = {Verdict.FASTER: "Jit gains more than the cache", Verdict.SLOWER: "The cache gains more than jit"}
    return (
        f"{said.get(pairs.verdict, 'Neither is shown to gain more')}: jit without a cache makes {pairs.words} as many"
        f" tokens/s as a cache without jit, n = {pairs.n}."
    )


def sped_up(small: Ratio, kind: str) -> str:
    """Whether a cache of some type speeds up the decoder. small: its rate over that with a float32 cache."""
    one = f"{'an' if kind.startswith('i') else 'a'} {kind} cache"
    doubt = f"whether {one} changes this decoder's rate is undecided{small.aside}"
    said = {Verdict.FASTER: f"{one} speeds up this decoder", Verdict.SLOWER: f"{one} slows down this decoder",
            Verdict.EQUAL: f"{one} leaves this decoder's rate as it is"}.get(small.verdict, doubt)  # fmt: skip
    ratio = f"{small.value:.3f}x{within(small, '.3f')}"
    return f"{said[0].upper()}{said[1:]}: {ratio} of the rate with a float32 one, n = {small.n}."


def kv_cache(
    trials: Sequence[Trial], contexts: Mapping[int, Ratio], quality: Sequence[dict], model: str, seed: int = 0
) -> str:
    """The claim, what a cache gains on the published case, and what a smaller one costs."""
    case = published_case(trials, seed)
    both, alone = (
        as_fast(case[key], "a 15-token answer on GPT-2's shapes", f"cache and jit as with {other}")
        if case[key].n
        else ""
        for key, other in (("both", "neither"), ("cache_alone", "jit alone"))
    )
    published = f", where {case['published']['ratio']:.2f}x was published with one side cold"
    small = next((e for e in quality if e["kv"] == "int8"), None)
    return claim(contexts, model).text(
        computed(trials, model),
        both + published * bool(both),
        alone,
        f"an int8 cache keeps the best token the same for {small['top1']:.1%} of {small['tokens']} tokens"
        if small
        else "",
    )
