"""What shapes and their changes cost: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.statistics import Verdict
from llama_lab.experiments.shapes_and_recompilation import table
from llama_lab.experiments.shapes_and_recompilation.table import Account, middle


def claim(policies: Sequence[Account], seed: int = 0) -> Claim:
    """Which shape policy serves a new process's requests fastest, and what the slowest takes beside it."""
    best, ratios = table.fastest(policies), table.ratios(policies, seed)
    known = [a for a in policies if a.subject in ratios and ratios[a.subject].n]
    if not known:
        return Claim(f"Only {best.subject} made the right tokens." if best else "No policy made the right tokens.")
    others = [Comparison(ratios[a.subject], a.subject, best.subject, "time of all requests") for a in known]
    slowest, longer = max(zip(known, others, strict=True), key=lambda pair: middle(pair[0].total))
    return (
        stated(
            "A new server is fastest with {best}; {slowest} takes {longer:slower} times as long, compiling more"
            " programs.",
            when=slowest.programs > best.programs and all(c.outcome == Verdict.SLOWER for c in others),
            best=best.subject,
            slowest=slowest.subject,
            longer=longer,
        )
        or longer.generic
    )
