"""What serving needs of jit, in a sentence for a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from llama_jax.placement import parse
from llama_lab.bench import standings, summary
from llama_lab.bench.claim import Claim, stated
from llama_lab.bench.wording import listed, named_well

KEPT_UP = 0.95  # of what is asked for: who makes as much might make more
BEHIND = 0.9  # of what is asked for: who makes less falls behind
BUILT = "only the need for few shapes is measured; the others follow from how requests join and leave"
AND = ", {other} {more:.0f}."  # what another server makes
NAMES = {"one": "one shape", "buckets": "buckets", "exact": "exact lengths"}


def answer(rising: Mapping[str, Sequence[dict]]) -> str:
    """What serving needs, which of it was measured, and what it is good for, `claim`."""
    needs = "Serving needs few shapes, calls of one token or a few, and a cache of its own for each request."
    return Claim(needs).text(f"{BUILT}. {claim(rising)}".removesuffix("."))


def falls_behind(loads: Sequence[dict]) -> float | None:
    """The requests a second from which on a server refuses or makes less than `BEHIND` of what is asked for; None if
    it keeps up. One load in the middle may be unlucky. loads: one server's, of `table.rising`."""
    kept = [e["rate"] for e in loads if not e["refused"] and e["tokens_s"] >= BEHIND * e["offered"]]
    return min((e["arrived"] for e in loads if e["rate"] > max(kept, default=0)), default=None)


def keeping_up(rising: Mapping[str, Sequence[dict]]) -> list[str]:
    """The rate at which each server falls behind, a line each. rising: of `table.rising`."""
    lines = []
    for name, loads in rising.items():
        behind, most = falls_behind(loads), f"{loads[-1]['arrived']:.2g} requests/s, the highest rate asked of it"
        lines.append(
            f"{named_well(name)} {f'falls behind at {behind:.2g} requests/s' if behind else f'keeps up at {most}'}"
        )
    return lines


def claim(rising: Mapping[str, Sequence[dict]], lower: bool = True) -> Claim:
    """What the best placement makes at its highest rate, and the other servers there, or the next placement; if it does
    not keep up, the most of each. rising: of `table.rising`. lower: whether the same follows of the highest rate that
    another server keeps up with."""
    known = [e for loads in rising.values() for e in loads if e["first"].n]
    if not known:
        return Claim("No server has a valid answer under rising rates.")
    mine = min(known, key=lambda e: (e["backend"] != standings.JAX, -e["tokens_s"]))
    apart = [e for e in known if e["server"] != mine["server"]]
    others = [e for e in apart if e["backend"] != standings.JAX] or apart
    who = f"`llama-jax serve` (`{mine['server']}`)" if mine["backend"] == standings.JAX else named_well(mine["server"])
    numbers = dict(mine=who, tokens=mine["tokens_s"], rate=mine["arrived"], offered=mine["offered"])
    most = "Under load {mine} makes at most {tokens:.0f} tokens/s"
    if not others:
        return stated(most + ".", **numbers)

    def beside(rate: float) -> list[dict]:
        return sorted((e for e in others if e["rate"] == rate), key=lambda e: -e["tokens_s"])

    def delivered(some: Sequence[dict]) -> str:
        return listed([f"{named_well(e['server'])} {made(e)}" for e in some])

    if beside(mine["rate"]) and kept_up(mine):
        less = [e for e in known if e["server"] == mine["server"] and e["rate"] < mine["rate"]]
        theirs = beside(mine["rate"])
        same = [e for e in less if {o["server"] for o in theirs} <= {o["server"] for o in beside(e["rate"])}]
        level = [e for e in same if any(map(kept_up, beside(e["rate"])))]
        first = max(level, key=itemgetter("rate"), default=None)
        words = "Asked for {offered:.0f} tokens/s ({rate:.2g} requests/s), {mine} delivers {tokens:.0f}, {theirs}."
        if first is None or not lower:
            return stated(words, theirs=delivered(theirs), **numbers)
        before = {e["server"]: e for e in beside(first["rate"]) if e["server"] in {o["server"] for o in theirs}}
        own = [e for e in known if e["backend"] == standings.JAX and e["rate"] == first["rate"] and e is not first]
        kernels = {e["server"]: parse(e["server"]).kernels for e in (mine, *own) if e["backend"] == standings.JAX}
        plain = [e for e in own if kernels.get(mine["server"]) == "fused" and kernels[e["server"]] == "none"]
        again = [f"it delivers {made(first)}", *(f"{named_well(name)} {made(e)}" for name, e in before.items())]
        then = listed(
            [*again, *(f"`{e['server']}` (plain JAX in float32, one request a step) {made(e)}" for e in plain)]
        )
        slow = dict(then=then, few=first["offered"], slow=first["arrived"])
        words += " Asked for {few:.0f} ({slow:.2g} requests/s), {then}."
        return stated(words, theirs=delivered(theirs), **slow, **numbers)
    best = max(others, key=lambda e: e["tokens_s"])
    return stated(most + AND, other=named_well(best["server"]), more=best["tokens_s"], **numbers)


def made(load: dict) -> str:
    """`31 (30 of 80 refused)`: tokens a second, and how many requests have no answer."""
    lost = [f"{load['refused']} of {load['n']} refused"] * bool(load["refused"])
    lost += [f"{load['void']} of {load['n']} failed"] * bool(load["void"])
    return f"{load['tokens_s']:.0f}" + f" ({', '.join(lost)})" * bool(lost)


def kept_up(load: dict) -> bool:
    """Whether a server made nearly all that was asked for."""
    return load["tokens_s"] >= KEPT_UP * load["offered"]


def with_slots(slotted: Sequence[dict]) -> list[str]:
    """What more slots do to each server's answers under way, first token and gaps, a line each. slotted: of
    `table.by_slots`."""
    lines = []
    for name, loads in summary.grouped(slotted, itemgetter("server")).items():
        known = [e for e in loads if e["first"].n and e["gap"]["p50"]]
        if not known:
            continue
        values = {
            "median first token": [e["first"].median for e in known],
            "median gap": [e["gap"]["p50"] for e in known],
            "P99 gap": [e["gap"]["p99"] for e in known],
        }
        said = [f"{what} {ms(found)} ms" for what, found in values.items() if None not in found]
        slots, last = listed([str(e["slots"]) for e in known]), known[-1]
        busy = f"{last['tokens_s'] * last['gap']['p50'] / 1e3:.1f} answers under way on average with {last['slots']}"
        lines.append(f"{named_well(name)} with {slots} slots: {'; '.join([*said, busy])}")
    return lines


def ms(values: Sequence[float]) -> str:
    """`222, 38.5 and 29.0`."""
    return listed([f"{value:.0f}" if value >= 100 else f"{value:.1f}" for value in values])
