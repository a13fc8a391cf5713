"""What upgrading does to a decode: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench.numbers import round_ratio
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import UNDECIDED, Verdict
from llama_lab.bench.wording import listed, with_n
from llama_lab.experiments.upgrading_jax import environments, table

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
    right = sound(trials, meta) or names
    said = f"{claim(trials, meta)} Of {len(names)} runtimes, JAX {names[0]} to {names[-1]}, {locked} is the locked one"
    if installed + environments.FLAGGED == locked:
        said += f" ({environments.FLAGGED}: with this package's XLA flag, without which it computes wrongly)"
    for word, found in (
        ("fastest" + " of those that compute rightly" * (right != names), max(right, key=rates.get)),
        ("slowest", min(names, key=rates.get)),
    ):
        where = "it" if found == locked else found + beside(trials, found, locked)
        said += f"; {PLACEMENT} decodes {word} under {where}"
    faults = {name: table.wrong(trials, meta, name) for name in names}
    bad = [f"{name} ({', '.join(fault)})" for name, fault in faults.items() if fault]
    slow = [name for name in names if meta["facts"][name]["updates"] > table.SLOW_UPDATES]
    said += f"; wrong values or crashes under {listed(bad)}" if bad else "; none computed wrong values"
    return said + (f"; small updates in a loop copy the whole array under {listed(slow)}" if slow else "") + "."


def beside(trials: Sequence[Trial], name: str, locked: str) -> str:
    """`: 1.31x [1.22, 1.40] (n = 6) of the locked one's rate`, and whether that is decided."""
    ratio = table.ratio(trials, PLACEMENT, name, locked)
    undecided = ratio.verdict in UNDECIDED
    return f": {with_n(ratio)} of the locked one's rate" + ", which these trials do not decide" * undecided


def claim(trials: Sequence[Trial], meta: dict) -> str:
    """How far apart the slowest release and the fastest that computes rightly are, and how many err."""
    names = table.releases(meta)
    right = sound(trials, meta)
    rates = {name: table.rate(trials, name, PLACEMENT).median for name in names}
    fast, slow = max(right or names, key=rates.get), min(names, key=rates.get)
    bad = len(names) - len(right)
    err = f"; {bad} compute{'s' * (bad == 1)} wrongly or crash{'es' * (bad == 1)}" if bad else ""
    ratio = table.ratio(trials, PLACEMENT, fast, slow)
    if ratio.verdict != Verdict.FASTER:
        return f"Whether JAX releases differ in speed, these trials do not decide{err}."
    which = "JAX release that computes rightly" if bad else "JAX release"
    return f"The fastest {which} decodes {round_ratio(ratio.value)} times as fast as the slowest{err}."


def sound(trials: Sequence[Trial], meta: dict) -> list[str]:
    """The releases that compute rightly."""
    return [name for name in table.releases(meta) if not table.wrong(trials, meta, name)]
