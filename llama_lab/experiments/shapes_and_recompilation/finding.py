"""What shapes and their changes cost: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.experiments.shapes_and_recompilation import table
from llama_lab.experiments.shapes_and_recompilation.table import Account, middle


def shapes(policies: Sequence[Account], pairs: dict[str, tuple[Account, Account]], seed: int = 0) -> str:
    """Programs and seconds that each policy lost over the stream, which one served it fastest, and three surprises with
    their cures.

    pairs: a short name of the surprise → (as it is, cured).
    """
    lost = ", ".join(f"{a.programs} programs in {middle(a.lost):.1f} s with {a.subject}" for a in policies)
    n = min(len(a.blocks) for a in policies)
    sentence = (
        f"{claim(policies, seed)} The first {policies[0].requests} requests of a process compile {lost} (n = {n} each)"
    )
    best = table.fastest(policies)
    if best is None:
        sentence += "; no policy's tokens are all right, so none has a time"
    else:
        ratios = table.ratios(policies, seed)
        slowest = max(
            (a for a in policies if a is not best and ratios[a.subject].n), key=lambda a: middle(a.total), default=None
        )
        sentence += (
            f"; {best.subject} serves them {'fastest' if slowest else 'alone with the right tokens'}, in"
            f" {middle(best.total):.1f} s"
        )
        if slowest:
            sentence += f", {slowest.subject} takes {ratios[slowest.subject].words} as long"
        if n == 1:
            sentence += " (one process each, so no interval)"
        elif unclear := [name for name, r in ratios.items() if r.n and not r.low > 1]:
            sentence += f", and n = {n} does not separate it from {', '.join(unclear)}"
    again = ", ".join(
        f"{bad.surprises} programs for {name} ({cured.surprises} once cured)" for name, (bad, cured) in pairs.items()
    )
    wrong = [a.subject for a in (*policies, *(a for pair in pairs.values() for a in pair)) if a.wrong]
    return (
        sentence
        + f"; at one shape, later requests still compile {again}"
        + (f"; {', '.join(wrong)} made other tokens." if wrong else ".")
    )


def claim(policies: Sequence[Account], seed: int = 0) -> str:
    """Which shape policy serves a new process's requests fastest, and what the slowest takes beside it."""
    best, ratios = table.fastest(policies), table.ratios(policies, seed)
    if best is None:
        return "No way of shaping requests made the right tokens, so none has a time."
    others = [a for a in policies if a is not best and ratios[a.subject].n]
    if not others:
        return f"Only {best.subject} made the right tokens."
    slowest = max(others, key=lambda a: middle(a.total))
    ratio, more = ratios[slowest.subject], ", compiling more programs" * (slowest.programs > best.programs)
    if ratio.n > 1 and not ratio.low > 1:
        return "These trials do not decide which way of shaping requests serves them fastest."
    return (
        f"A new server is fastest with {best.subject}; {slowest.subject} takes {ratio.value:.1f} times as long{more}."
    )
