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


def answer(rising: Mapping[str, Sequence[dict]], shapes: str) -> str:
    """What serving needs, which of it was measured, and what it is good for, `claim`. shapes: what they cost."""
    needs = "Serving needs few shapes, calls of one token or a few, and a cache of its own for each request."
    return Claim(needs).text(f"{BUILT}. {shapes}. {claim(rising)}".removesuffix("."))


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


def ours_and_others(rising: Mapping[str, Sequence[dict]]) -> tuple[dict | None, list[dict]]:
    """(the load of the most tokens a second of ours, or of another server where none of ours is known; the loads of
    other programs' servers, or where there is none of our other placements)."""
    known = [e for loads in rising.values() for e in loads if e["first"].n]
    mine = min(known, key=lambda e: (e["backend"] != standings.JAX, -e["tokens_s"]), default=None)
    apart = [e for e in known if e["server"] != mine["server"]]
    return mine, [e for e in apart if e["backend"] != standings.JAX] or apart


def side_by_side(rising: Mapping[str, Sequence[dict]]) -> list[tuple[dict, list[dict]]]:
    """[(ours, the others)] at the highest rate that ours keeps up with, the most first, and at the highest below it
    that another server keeps up with, there with plain JAX; none where no other was asked for as much."""
    mine, others = ours_and_others(rising)

    def beside(rate: float) -> list[dict]:
        return sorted((e for e in others if e["rate"] == rate), key=lambda e: -e["tokens_s"])

    if mine is None or not beside(mine["rate"]) or not kept_up(mine):
        return []
    theirs = beside(mine["rate"])
    servers = {e["server"] for e in theirs}
    less = [e for e in rising[mine["server"]] if e["first"].n and e["rate"] < mine["rate"]]
    same = [e for e in less if servers <= {o["server"] for o in beside(e["rate"])}]
    first = max((e for e in same if any(map(kept_up, beside(e["rate"])))), key=itemgetter("rate"), default=None)
    if first is None:
        return [(mine, theirs)]
    before = {e["server"]: e for e in beside(first["rate"]) if e["server"] in servers}
    own = [e for loads in rising.values() for e in loads if e["first"].n and e["rate"] == first["rate"]]
    return [(mine, theirs), (first, [*before.values(), *(e for e in own if fused(first) and plain(e))])]


def fused(load: dict) -> bool:
    """Whether it is of one of our placements with the fused kernel."""
    return load["backend"] == standings.JAX and parse(load["server"]).kernels == "fused"


def plain(load: dict) -> bool:
    """Whether it is of one of our placements without kernels."""
    return load["backend"] == standings.JAX and parse(load["server"]).kernels == "none"


def called(load: dict) -> str:
    """A server's name, and of plain JAX what it does."""
    if load["backend"] != standings.JAX:
        return named_well(load["server"])
    return f"`{load['server']}`" + " (plain JAX, requests in turn)" * plain(load)


def delivered(loads: Sequence[dict]) -> list[str]:
    """`llama-server 80`, of each."""
    return [f"{called(e)} {made(e)}" for e in loads]


def claim(rising: Mapping[str, Sequence[dict]], lower: bool = True) -> Claim:
    """What the best placement makes at its highest rate, and the other servers there, or the next placement; if it does
    not keep up, the most of each. rising: of `table.rising`. lower: whether the same follows of the highest rate that
    another server keeps up with."""
    mine, others = ours_and_others(rising)
    if mine is None:
        return Claim("No server has a valid answer under rising rates.")
    who = f"`llama-jax serve` (`{mine['server']}`)" if mine["backend"] == standings.JAX else named_well(mine["server"])
    numbers = dict(mine=who, tokens=mine["tokens_s"], rate=mine["arrived"], offered=mine["offered"])
    most = "Under load {mine} makes at most {tokens:.0f} tokens/s"
    if not others:
        return stated(most + ".", **numbers)
    if found := side_by_side(rising):
        words = "Asked for {offered:.0f} tokens/s ({rate:.2g} requests/s), {mine} delivers {tokens:.0f}, {theirs}."
        numbers["theirs"] = listed(delivered(found[0][1]))
        if found[1:] and lower:
            first, then = found[1]
            words += " Asked for {few:.0f} ({slow:.2g} requests/s), it delivers {then}."
            then = listed([made(first), *delivered(then)])
            numbers |= dict(few=first["offered"], slow=first["arrived"], then=then)
        return stated(words, **numbers)
    best = max(others, key=lambda e: e["tokens_s"])
    return stated(most + AND, other=named_well(best["server"]), more=best["tokens_s"], **numbers)


def briefly(rising: Mapping[str, Sequence[dict]]) -> str:
    """The same for a cell of a table: asked for 171 tokens/s (8.2 requests/s), `step+fused` delivers 166, llama-server
    80 and Ollama 61; the claim where ours does not keep up."""
    if not (found := side_by_side(rising)):
        return str(claim(rising)).removesuffix(".")
    return "; ".join(
        f"asked for {e['offered']:.0f} tokens/s ({e['arrived']:.2g} requests/s), {called(e)} delivers"
        f" {listed([made(e), *delivered(theirs)])}"
        for e, theirs in found
    )


def made(load: dict) -> str:
    """`31 (30 of its 80 refused)`: tokens a second, and how many requests have no answer."""
    lost = [f"{load['refused']} of its {load['n']} refused"] * bool(load["refused"])
    lost += [f"{load['void']} of its {load['n']} failed"] * bool(load["void"])
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
