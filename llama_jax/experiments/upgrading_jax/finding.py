"""What upgrading does to a decode: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_jax.bench.record import Trial
from llama_jax.bench.wording import listed, with_n
from llama_jax.experiments.upgrading_jax import environments, table

PLACEMENT = "step"


def upgrading(trials: Sequence[Trial], meta: dict | None) -> str:
    """How far apart the releases are, which of them compute wrong values, and where the locked one stands. meta: None
    where nothing is recorded."""
    names = table.releases(meta) if meta else []
    installed = meta["environment"]["packages"]["jax"] if meta else ""
    locked = next((name for name in (installed + environments.FLAGGED, installed) if name in names), installed)
    if locked not in names or len(names) < 2:
        return (
            "No two releases of JAX are recorded, the locked one among them, so nothing can be said of upgrading yet."
        )
    rates = {name: table.rate(trials, name, PLACEMENT).median for name in names}
    said = f"Of {len(names)} runtimes, JAX {names[0]} to {names[-1]}, {locked} is the locked one"
    for word, pick in (("fastest", max), ("slowest", min)):
        found = pick(names, key=rates.get)
        ratio = "" if found == locked else f": {with_n(table.ratio(trials, PLACEMENT, found, locked))} of its rate"
        said += f"; `{PLACEMENT}` decodes {word} under {'it' if found == locked else found}{ratio}"
    faults = {name: table.wrong(trials, meta, name) for name in names}
    bad = [f"{name} ({', '.join(found)})" for name, found in faults.items() if found]
    slow = [name for name in names if meta["facts"][name]["updates"] > table.SLOW_UPDATES]
    said += f"; wrong values or crashes under {listed(bad)}" if bad else "; none computed wrong values"
    return said + (f"; small updates in a loop copy the whole array under {listed(slow)}" if slow else "") + "."
