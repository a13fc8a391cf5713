"""What became of a placement of one's own, and of the subjects that had to be caught."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench.claim import Claim
from llama_lab.experiments.your_own_placement import measure


def claim(fates: Sequence[measure.Fate]) -> Claim:
    """How many of the specimens that must not pass were caught."""
    if not fates:
        return Claim("A placement of your own takes one line.")
    caught = sum(bool(fate.caught) for fate in fates)
    return Claim(f"A placement of your own takes one line, and {caught} of {len(fates)} made to mislead were caught.")


def own_placement(table: Sequence[dict], mine: str, said: str) -> str:
    """The claim, what became of one's own placement, and of each specimen. said: the line that makes the placement."""
    fates = {e["name"]: measure.fate(e) for e in table}
    specimens = [fates[name] for name in measure.WHAT if name in fates]
    return claim(specimens).text(
        f"with one line, {said}: {fates[mine].why}",
        *(f"“{fate.name}” was caught by {fate.caught or 'nobody'} ({fate.why})" for fate in specimens),
    )
