"""What the headline says, in a sentence and its detail."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench import AGAIN, summary
from llama_lab.bench.numbers import interval, within
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import UNDECIDED, listed, settled
from llama_lab.experiments.headline.measure import BASELINE

UNJITTED, JITTED, FUSED, RIVAL = "eager", "loop", "loop+fused", "llamacpp"


def claim(trials: Sequence[Trial], seed: int = 0) -> str:
    """What jit does to the rate, and what compiled kernels do beside it; what is undecided is left out."""
    if not summary.warm(trials, JITTED) or not summary.warm(trials, UNJITTED):
        return f"{JITTED} or {UNJITTED} has no valid answer here, so the claim is not tested"
    gain, more = (summary.paired_ratio(trials, *pair, seed) for pair in ((JITTED, UNJITTED), (FUSED, JITTED)))
    if gain.verdict in UNDECIDED:
        return "Whether jitting the whole answer makes the model faster, these trials do not decide"
    much = f"{gain.value:.1f} times as fast" if settled(gain) else gain.verdict
    jitted = f"Jitting the whole answer makes the model {much}"
    return (
        f"{jitted}; compiled kernels that read fewer bits another {more.value:.1f} times"
        if more.n and settled(more)
        else jitted
    )


def headline(trials: Sequence[Trial], seed: int = 0) -> str:
    """The claim, its intervals, the fused kernels beside llama.cpp, and how far two equal things differed."""
    said = [claim(trials, seed) + "."]
    known = [name for name in (UNJITTED, BASELINE, JITTED, FUSED, RIVAL) if summary.warm(trials, name)]
    rates = [(e["name"], e["tokens_per_second"]) for e in summary.table(trials, BASELINE, known, seed)]
    shown = [f"{name} {rate['median']:.1f}{within(rate, '.1f')}" for name, rate in rates if rate["n"]]
    said += [f"Tokens/s: {', '.join(shown)}."] if shown else []
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
