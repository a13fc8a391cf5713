"""One-sentence answers, computed from records. What the data do not decide, the sentence does not claim."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_jax.bench import costs, summary
from llama_jax.bench.compiling import LAYOUTS, Compilation
from llama_jax.bench.costs import BreakEven, Slope
from llama_jax.bench.protocol import AGAIN
from llama_jax.bench.record import Trial
from llama_jax.bench.starts import Start
from llama_jax.bench.statistics import Ratio


def placements(trials: Sequence[Trial], table: list[dict]) -> str:
    """Which placement decodes fastest, over what, how close to the limit, and when its compilation has paid."""
    valid = [r for r in table if r["valid_trials"] and r["tokens_equal"] and not r["name"].endswith(AGAIN)]
    if not valid:
        return "No placement has a valid trial, so there is nothing to compare."
    best = max(valid, key=lambda r: r["tokens_per_second"]["median"])
    rate = best["tokens_per_second"]
    sentence = (f"With {best['name']} the model decodes {rate['median']:.1f} tokens/s [{rate['low']:.1f}, {rate['high']:.1f}],"
                f" {rate['median'] / summary.limit(trials, summary.baseline_of(table)):.0%} of the memory-bandwidth limit")  # fmt: skip
    slowest = next((r for r in valid if r["name"] == "eager"), min(valid, key=lambda r: r["tokens_per_second"]["median"]))
    if slowest is not best:
        gain = summary.paired_ratio(trials, best["name"], slowest["name"])
        sentence += f" and {gain.value:.2f}x [{gain.low:.2f}, {gain.high:.2f}] of {slowest['name']}"
        if best["compile"] and slowest["compile"]:
            sentence += pays(summary.break_even(best, slowest))
    rivals = [r for r in valid if r is not best]
    undecided = [r["name"] for r in rivals if summary.paired_ratio(trials, best["name"], r["name"]).verdict != "faster"]
    if undecided:
        sentence += f"; these trials do not separate it from {', '.join(undecided)}"
    wrong = [r["name"] for r in table if not r["tokens_equal"]]
    return sentence + (f"; {', '.join(wrong)} made other tokens and has no time." if wrong else ".")


def pays(tokens: float | None) -> str:
    if tokens is None:
        return "; its compilation does not pay for itself"
    return (
        "; its compilation pays from the first token" if tokens < 1 else f"; its compilation has paid for itself after {tokens:.0f} tokens"
    )


def arrivals(trials: Sequence[Trial], cached: str, uncached: str, streams: Sequence[str]) -> str:
    """What the cache saves on one answer, and in what portions placements hand tokens over."""
    seconds = {name: [t.seconds for t in summary.warm(trials, name)] for name in (cached, uncached)}
    if not all(seconds.values()):
        return "The trials with and without a cache are not both valid, so there is nothing to compare."
    tokens = summary.warm(trials, cached)[0].new_tokens
    with_cache, without = (float(np.median(seconds[name])) for name in (cached, uncached))
    portions = [f"{name} hands {portion(summary.warm(trials, name)[0])} at a time" for name in streams if summary.warm(trials, name)]
    return (f"The same {tokens} tokens take {with_cache:.2f} s with a KV cache and {without:.2f} s without one,"
            f" {without / with_cache:.1f} times as long (medians of {len(seconds[cached])} and {len(seconds[uncached])} answers); "
            + ", ".join(portions) + " to the reader.")  # fmt: skip


def claims(speed_ups: Sequence[dict], first: dict, rounds: Sequence[dict]) -> str:
    """What is left of three published ways of timing once the protocol is applied."""
    short, cold, warm = speed_ups

    def words(found: dict) -> str:
        ratio = found["ratio"]
        return f"{ratio.value:.2f}x" + (f" [{ratio.low:.2f}, {ratio.high:.2f}]" if np.isfinite(ratio.low) else "") + f" (n = {ratio.n})"

    apart = {way: sum(r[way].excludes_one for r in rounds) for way in ("sequential", "interleaved")}
    cold_over = first["cold_mean"] / first["naive_p99"]
    return (f"A KV cache makes a short answer {words(warm)} as fast when both sides are warm; timed as published, with compilations inside,"
            f" the same code gives {words(cold)} where {cold['published']:.2f}x was published and {words(short)} where"
            f" {short['published']:.2f}x was; the mean first-token time of {len(first['cold'])} cold requests is {cold_over:.1f} times the"
            f" “P99” of {len(first['warm'])} warm ones; and one program timed against itself is called different in"
            f" {apart['sequential']} of {len(rounds)} rounds one after the other, in"
            f" {apart['interleaved']} of {len(rounds)} interleaved.")  # fmt: skip


def portion(trial: Trial) -> str:
    """Most tokens that arrive at one moment, the first token aside."""
    _, counts = np.unique(trial.token_times_ns[1:], return_counts=True)
    largest = int(counts.max(initial=1))
    return "one token" if largest == 1 else "all tokens" if largest == len(trial.token_times_ns) - 1 else f"{largest} tokens"


def compiling(rows: Sequence[Compilation], trials: Sequence[Start], placement: str = "step", seed: int = 0) -> str:
    """Seconds a layer unrolled and scanned, what a cache and a file of executables leave of a cold start, and break-even."""
    said, slopes = [], [costs.per_layer(rows, layout) for layout in LAYOUTS]
    if all(np.isfinite(found.slope) for found in slopes):
        unrolled, scanned = (milliseconds(found) for found in slopes)
        said.append(f"each layer adds {unrolled} to compiling when unrolled and {scanned} when scanned")
    cached, read, both = (costs.start_ratio(trials, placement, *ways, lambda t: t.compile_part, seed)
                          for ways in (("cached", "cold"), ("serialised", "cold"), ("serialised", "cached")))  # fmt: skip
    if cached.n and read.n and both.n:
        said.append(f"of the compile part of a cold start JAX's persistent cache leaves {share(cached)} and a file of executables"
                    f" {share(read)}, which is {share(both)} of the cached one"
                    f" (n = {min(cached.n, read.n, both.n)} process pairs)")  # fmt: skip
    for name in (placement, "loop"):
        found = costs.break_even(trials, (name, "cold"), ("eager", "cold"), seed)
        if not np.isnan(found.tokens):
            said.append(f"{name} compiled from nothing is ahead of eager {after(found)}")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}." if said else "No start and no depth has valid trials to compare."


def milliseconds(found: Slope) -> str:
    return f"{1e3 * found.slope:.0f} ms" + (f" [{1e3 * found.low:.0f}, {1e3 * found.high:.0f}]" if np.isfinite(found.low) else "")


def share(found: Ratio) -> str:
    return f"{found.value:.0%}" + (f" [{found.low:.0%}, {found.high:.0%}]" if np.isfinite(found.low) else "")


def after(found: BreakEven) -> str:
    """`from the start`, `after 40 tokens [30, 55]`, `never`; what the interval leaves open is said."""
    if found.low == 0 and found.high == costs.NEVER:
        return f"at a point that {found.n} processes do not decide"
    if found.tokens == 0:
        words = "from the start" if not found.high > 0 else f"from the start or within {found.high:.0f} tokens"
    elif found.tokens == costs.NEVER:
        words = "never" if not found.low < costs.NEVER else f"not before {found.low:.0f} tokens, if at all"
    else:
        high = "no end" if found.high == costs.NEVER else f"{found.high:.0f}"
        words = f"after {found.tokens:.0f} tokens" + (f" [{found.low:.0f}, {high}]" if not np.isnan(found.low) else "")
    return words + (" (too few processes for an interval)" if np.isnan(found.low) else "")
