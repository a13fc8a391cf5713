"""What the headline says, in a sentence and its detail."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench import AGAIN, summary
from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import interval, listed, within
from llama_lab.experiments.headline.measure import BASELINE

UNJITTED, JITTED, FUSED, RIVAL = "eager", "loop", "loop+fused", "llamacpp"


def compared(trials: Sequence[Trial], subject: str, baseline: str, seed: int) -> Comparison:
    return Comparison(summary.paired_ratio(trials, subject, baseline, seed), subject, baseline)


def claim(trials: Sequence[Trial], seed: int = 0) -> Claim:
    """What jit does to the rate, and what compiled kernels add to it."""
    gain, more = compared(trials, JITTED, UNJITTED, seed), compared(trials, FUSED, JITTED, seed)
    said = "Jitting the whole answer makes the model {gain} times as fast"
    return (
        stated(said + "; compiled kernels that read fewer bits another {more} times.", gain=gain, more=more)
        or stated(said + ".", gain=gain)
        or gain.generic
    )


def headline(trials: Sequence[Trial], seed: int = 0) -> str:
    """The claim, all rates, further ratios, and how far two equal subjects differed."""
    known = [name for name in (UNJITTED, BASELINE, JITTED, FUSED, RIVAL) if summary.warm(trials, name)]
    rates = [(e["name"], e["tokens_per_second"]) for e in summary.table(trials, BASELINE, known, seed)]
    shown = [f"{name} {rate['median']:.1f}{within(rate, '.1f')}" for name, rate in rates if rate["n"]]
    further = [
        compared(trials, *pair, seed) for pair in ((JITTED, BASELINE), (FUSED, RIVAL), (BASELINE + AGAIN, BASELINE))
    ]
    wrong = sorted({t.subject for t in trials if t.phase == "warm" and t.wrong})
    return claim(trials, seed).text(
        *(c.words for c in further if c.ratio.n),
        f"tokens/s: {', '.join(shown)}" if shown else "",
        f"{listed(wrong)} made other tokens than the reference" if wrong else "",
    )


def beside(table: Sequence[dict], published: Sequence[dict]) -> str:
    """The same subjects' rates here and on the machine that is published."""
    theirs = {e["name"]: e["tokens_per_second"] for e in published}
    both = [(e["name"], e["tokens_per_second"], theirs[e["name"]]) for e in table if e["name"] in theirs]
    return "; ".join(
        f"{name} {here['median']:.1f} {interval(here, '.1f')} here, {there['median']:.1f} published"
        for name, here, there in both
        if here["n"] and there["n"]
    )
