"""What serving needs of jit, in a sentence for a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llama_lab.bench import standings
from llama_lab.bench.claim import Claim, stated

KEPT_UP = 0.95  # of what is asked for: who makes as much might make more
BEHIND = 0.9  # of what is asked for: who makes less falls behind
NAMES = {"one": "one shape", "buckets": "buckets", "exact": "exact lengths"}


def answer(rising: Mapping[str, Sequence[dict]]) -> str:
    """What serving needs, and what it is good for, `claim`."""
    needs = "Serving needs few shapes, calls of one token or a few, and a cache of its own for each request."
    return Claim(needs).text(str(claim(rising)).removesuffix("."))


def falls_behind(loads: Sequence[dict]) -> float | None:
    """The rate from which on a server refuses or makes less than `BEHIND` of what is asked for; None if it keeps up.
    One load in the middle may be unlucky. loads: one server's, of `table.rising`."""
    kept = [e["rate"] for e in loads if not e["refused"] and e["tokens_s"] >= BEHIND * e["offered"]]
    return min((e["rate"] for e in loads if e["rate"] > max(kept, default=0)), default=None)


def claim(rising: Mapping[str, Sequence[dict]]) -> Claim:
    """The most that the best placement serves, and the most of the best other server, or of the next placement. rising:
    of `table.rising`."""
    known = [[e for e in loads if e["first"].n] for loads in rising.values()]
    best = [max(loads, key=lambda e: e["tokens_s"]) for loads in known if loads]
    if not best:
        return Claim("No server has a valid answer under rising rates.")
    mine, *ours = sorted(best, key=lambda e: (e["backend"] != standings.JAX, -e["tokens_s"]))
    others = [e for e in ours if e["backend"] != standings.JAX] or ours
    numbers = dict(mine=mine["server"], tokens=mine["tokens_s"])
    sentence = "Under load `{mine}` makes at most {tokens:.0f} tokens/s"
    if not others:
        return stated(sentence + ".", **numbers)
    numbers |= dict(other=others[0]["server"], most=others[0]["tokens_s"], offered=mine["offered"])
    kept_up = mine["tokens_s"] >= KEPT_UP * mine["offered"]
    asked = "Under load `{mine}` makes {tokens:.0f} of {offered:.0f} tokens/s asked for, {other} {most:.0f}."
    return stated(asked, when=kept_up, **numbers) or stated(sentence + "; {other} {most:.0f}.", **numbers)
