"""What upgrading does to a decode: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.record import Trial
from llama_lab.experiments.upgrading_jax import table

PLACEMENT = "step"


def sound(trials: Sequence[Trial], meta: dict) -> list[str]:
    """The releases that compute rightly."""
    return [name for name in table.releases(meta) if not table.wrong(trials, meta, name)]


def claim(trials: Sequence[Trial], meta: dict | None) -> Claim:
    """How far apart the slowest release and the fastest that computes rightly are, and how many err. meta: None where
    nothing is recorded."""
    names = table.releases(meta) if meta else []
    if len(names) < 2:
        return Claim("No two releases of JAX are recorded, so nothing can be said of upgrading yet.")
    right = sound(trials, meta)
    rates = {name: table.rate(trials, name, PLACEMENT).median for name in names}
    fast, slow, bad = max(right or names, key=rates.get), min(names, key=rates.get), len(names) - len(right)
    gain = Comparison(
        table.ratio(trials, PLACEMENT, fast, slow), f"{PLACEMENT} under {fast}", f"{PLACEMENT} under {slow}"
    )
    return (
        stated(
            "The fastest JAX release that computes rightly decodes {gain} times as fast as the slowest; {bad} compute"
            " wrongly or crash.",
            when=bool(right) and bad > 1,
            gain=gain,
            bad=bad,
        )
        or stated("The fastest JAX release decodes {gain} times as fast as the slowest.", when=not bad, gain=gain)
        or gain.generic
    )


def upgrading(trials: Sequence[Trial], meta: dict | None) -> str:
    """The claim, and the releases that compute wrong values or copy what is updated in a loop."""
    facts = meta["facts"] if meta else {}
    slow = [name for name in facts if facts[name]["updates"] > table.SLOW_UPDATES]
    faults = {name: table.wrong(trials, meta, name) for name in facts}
    return claim(trials, meta).text(
        *(f"wrong values or crashes under {name} ({', '.join(fault)})" for name, fault in faults.items() if fault),
        f"small updates in a loop copy the whole array under {', '.join(slow)}" if slow else "",
    )
