"""What became of a placement of one's own, and of the subjects that had to be caught."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench.numbers import interval
from llama_lab.experiments.your_own_placement import measure

KINDS = {measure.SHORT: "a wrong one", measure.ANEW: "one that compiles", measure.NESTED.name: "one too close to call"}


def own_placement(table: Sequence[dict], mine: str, said: str) -> str:
    """One's own row with ratio, verdict and limit, or why it has none; then each specimen with who caught it.

    said: the line that makes the placement.
    """
    entries = {e["name"]: e for e in table}
    outcomes = [outcome(measure.fate(entries[name]), kind) for name, kind in KINDS.items() if name in entries]
    fates = [measure.fate(entries[name]) for name in KINDS if name in entries]
    return f"{claim(fates)} With one line, {said}: {placed(entries[mine])}; {'; '.join(outcomes)}."


def claim(fates: Sequence[measure.Fate]) -> str:
    """How many of the specimens that must not pass were caught."""
    caught = sum(bool(fate.caught) for fate in fates)
    if not fates:
        return "A placement of your own takes one line."
    return f"A placement of your own takes one line, and {caught} of {len(fates)} made to mislead were caught."


def placed(entry: dict) -> str:
    """What became of one's own placement."""
    fate = measure.fate(entry)
    if not entry["valid_trials"]:
        return f"it has no time, {fate.caught} caught it ({fate.why})"
    rate, mbu = entry["tokens_per_second"], entry["mbu"]
    limit = f", {mbu:.0%} of the limit by the fastest bandwidth probe" if mbu else ""
    return f"it decodes {rate['median']:.1f} tokens/s {interval(rate, '.1f')}{limit} ({fate.why})"


def outcome(fate: measure.Fate, kind: str) -> str:
    """What became of a specimen: who caught it and what it therefore lacks, or its verdict."""
    if not fate.caught:
        return f"“{fate.name}”, meant as {kind}, has a verdict here ({fate.why})"
    lacks = "verdict" if fate.caught == measure.INTERVAL else "time"
    return f"{kind} (“{fate.name}”) gets no {lacks} from {fate.caught} ({fate.why})"
