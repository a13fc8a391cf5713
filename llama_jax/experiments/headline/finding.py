"""What the headline says, in a sentence and its detail."""

from __future__ import annotations

from collections.abc import Sequence

from llama_jax.bench import AGAIN, summary
from llama_jax.bench.record import Trial
from llama_jax.bench.wording import interval, listed
from llama_jax.experiments.headline.measure import BASELINE

UNJITTED, JITTED, FUSED, RIVAL = "eager", "loop", "loop+fused", "llamacpp"


def claim(trials: Sequence[Trial], seed: int = 0) -> str:
    """What jit does to the rate."""
    if not summary.warm(trials, JITTED) or not summary.warm(trials, UNJITTED):
        return f"{JITTED} or {UNJITTED} has no valid answer here, so the claim is not tested"
    gain = summary.paired_ratio(trials, JITTED, UNJITTED, seed)
    (entry,) = summary.table(trials, BASELINE, [JITTED], seed)[:1]
    rate = entry["tokens_per_second"]["median"]
    gained = f"{gain.value:.1f} times the rate without jit"
    return f"With the whole answer in one jit the model decodes {rate:.1f} tokens/s, {gained}"


def headline(trials: Sequence[Trial], seed: int = 0) -> str:
    """The claim, its intervals, the fused kernels beside llama.cpp, and how far two equal things differed."""
    said = [claim(trials, seed) + "."]
    details = []
    for above, below in ((JITTED, UNJITTED), (JITTED, BASELINE), (FUSED, JITTED), (FUSED, RIVAL)):
        found = summary.paired_ratio(trials, above, below, seed)
        if found.n:
            details.append(f"{above} over {below} {found.words}, {found.verdict}, n = {found.n}")
    if details:
        said.append(f"Ratios: {'; '.join(details)}.")
    control = summary.paired_ratio(trials, BASELINE + AGAIN, BASELINE, seed)
    if control.n:
        said.append(f"The control, {BASELINE} over itself: {control.words}, {control.verdict}.")
    lost = sorted({t.subject for t in trials if t.phase == "warm" and t.wrong})
    if lost:
        said.append(f"{listed(lost)} made other tokens than the reference.")
    return " ".join(said)


def beside(table: Sequence[dict], published: Sequence[dict]) -> str:
    """The same subjects' rates here and on the machine that is published."""
    theirs = {e["name"]: e["tokens_per_second"] for e in published}
    both = [(e["name"], e["tokens_per_second"], theirs[e["name"]]) for e in table if e["name"] in theirs]
    return "; ".join(
        f"{name} {here['median']:.1f} {interval(here, '.1f')} here, {there['median']:.1f} published"
        for name, here, there in both
        if here["n"] and there["n"]
    )
