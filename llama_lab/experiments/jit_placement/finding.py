"""What each token as one program gains, and what sampling adds: the sentences of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench import summary
from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import interval, listed
from llama_lab.experiments.jit_placement.table import Cost


def claim(trials: Sequence[Trial], table: list[dict]) -> Claim:
    """What one program a token gains over none, and what several tokens a program add to that."""
    rates = {r["name"]: r["tokens_per_second"]["median"] for r in table if r["valid_trials"] and r["tokens_equal"]}
    several = [name for name in rates if name == "loop" or name.startswith("chunk")]
    most = max(several, key=rates.get, default="loop")
    gain, more = (
        Comparison(summary.paired_ratio(trials, *pair), *pair) for pair in (("step", "eager"), (most, "step"))
    )
    said = "Compiling each token as one program makes the model {gain} times as fast"
    return (
        stated(said + "; compiling several at once adds {more:more}.", gain=gain, more=more)
        or stated(said + ".", gain=gain)
        or gain.generic
    )


def added(costs: Sequence[Cost]) -> str:
    """What sampling adds to a token, as the title of its figure."""
    middles = [c.added.median for c in costs]
    if not costs or any(c.added.low <= 0 for c in costs):
        return "What sampling adds to a token does not show under every placement"
    return f"Sampling adds {min(middles):.0f} to {max(middles):.0f} ms to a token"


def sampling(costs: Sequence[Cost], settings: str) -> str:
    """What sampling adds to a token where it adds least and most, and what it leaves of the rate that falls most."""
    if not costs:
        return "No placement has valid answers of both kinds side by side, so what sampling costs is not known"
    least, *_, most = sorted([*costs, *costs], key=lambda c: c.added.median)
    shown = [f"{c.added.median:.2f} ms {interval(c.added)} to a token under {c.name}" for c in (least, most)]
    slowed = min(costs, key=lambda c: c.ratio.value)
    rate = Comparison(slowed.ratio, f"{slowed.name} with sampling", "the same without")
    return f"sampling ({settings}) adds {listed(shown)}; {rate.words}"
