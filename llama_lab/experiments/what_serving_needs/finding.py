"""What serving needs of jit, in a sentence for a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench import standings
from llama_lab.bench.wording import listed
from llama_lab.experiments.what_serving_needs import table

KEPT_UP = 0.95  # of what is asked for: who makes as much might make more
NAMES = {"one": "one shape", "buckets": "few shapes", "exact": "exact lengths"}


def serving(entries: Sequence[dict], meta: dict) -> str:
    """How much each server makes at most and how soon it begins; what shapes cost a placement; what slots change; how
    many answers were made again; who was not measured. entries: `table.loads`."""
    rising = table.rising(entries, meta)
    servers = [most(name, loads) for name, loads in rising.items() if any(e["first"].n for e in loads)]
    said = [f"under load {listed(servers)}"] if servers else []
    shapes = table.by_shapes(entries, meta)
    said += [shaped([e for e in shapes if e["server"] == name]) for name in dict.fromkeys(e["server"] for e in shapes)]
    slots = [e for e in table.by_slots(entries, meta) if e["first"].n]
    said += [slotted([e for e in slots if e["server"] == name]) for name in dict.fromkeys(e["server"] for e in slots)]
    said.append(equal(entries))
    if absent := list(dict.fromkeys(gap["name"] for gap in meta["missing"])):
        said.append(f"{listed(absent)} {'was' if len(absent) == 1 else 'were'} not measured here")
    sentence = "; ".join(filter(None, said)) or "nothing was measured"
    lead = claim(rising) or ("No server has a valid answer under rising rates." if any(said) else "")
    return " ".join(filter(None, [lead, f"{sentence[0].upper()}{sentence[1:]}."]))


def claim(rising: dict[str, Sequence[dict]]) -> str:
    """The most that the best placement serves, or that it was asked for and served, and the most of the best other
    server, or of the next placement."""
    best = {name: max((e for e in loads if e["first"].n), key=lambda e: e["tokens_s"], default=None)
            for name, loads in rising.items()}  # fmt: skip
    ranked = sorted((e for e in best.values() if e), key=lambda e: (e["backend"] != standings.JAX, -e["tokens_s"]))
    if not ranked:
        return ""
    mine, others = ranked[0], [e for e in ranked if e["backend"] != standings.JAX] or ranked[1:2]
    keeps = mine["tokens_s"] >= KEPT_UP * mine["offered"]
    does = (
        f"makes {mine['tokens_s']:.0f} tokens/s, about all that was asked for"
        if keeps
        else f"serves {mine['tokens_s']:.0f} tokens/s at most"
    )
    beside = (
        f"; {others[0]['server']} makes at most {others[0]['tokens_s']:.0f}" if others and others[0] is not mine else ""
    )
    return f"As requests become more frequent, {mine['server']} {does}{beside}."


def most(name: str, loads: Sequence[dict]) -> str:
    """A server's most tokens a second, and its first token at the lowest rate and the highest it was asked."""
    known = [e for e in loads if e["first"].n]
    best, calm, last = max(known, key=lambda e: e["tokens_s"]), known[0], known[-1]
    refused = f", with {last['refused']} of {last['n']} refused" if last["refused"] else ""
    busy = f" and {ms(last)} at {last['rate']:g}/s{refused}" if last is not calm else ""
    return (
        f"{name} makes up to {best['tokens_s']:.0f} tokens/s (first token, P50: {ms(calm)} at {calm['rate']:g}/s{busy})"
    )


def ms(e: dict) -> str:
    value = e["first"].median
    return f"{value / 1e3:.1f} s" if value >= 1e4 else f"{value:.0f} ms"


def shaped(entries: Sequence[dict]) -> str:
    """What a placement's shapes cost: padding, first token and compilations of each."""
    parts = [
        f"with {NAMES[e['shapes']]} {e['padding']:.0%} is padding, the first token (P50) comes after {ms(e)} and"
        f" {e['compiled']} programs compile in service"
        for e in entries
        if e["first"].n
    ]
    return f"{entries[0]['server']} at {entries[0]['rate']:g}/s: {listed(parts)}" if len(parts) > 1 else ""


def slotted(entries: Sequence[dict]) -> str:
    """From the fewest slots to the most."""
    if len(entries) < 2:
        return ""
    few, many = entries[0], entries[-1]
    gaps = f", the gap between two pieces (P50) from {few['gap']['p50']:.0f} to {many['gap']['p50']:.0f} ms"
    goes = "is not seen to change" if level(few, many) else "changes"
    return (
        f"from {few['slots']} to {many['slots']} slots of {few['server']} the first token {goes} ({ms(few)} and"
        f" {ms(many)}){gaps}"
    )


def level(few: dict, many: dict) -> bool:
    """Whether the intervals of two loads' first tokens overlap."""
    return few["first"].low <= many["first"].high and many["first"].low <= few["first"].high


def equal(entries: Sequence[dict]) -> str:
    """Whether the answers that were made again were the same."""
    gated, ties, wrong = (sum(e[key] for e in entries) for key in ("gated", "ties", "wrong"))
    if not gated:
        return ""
    same = f"{gated - ties - wrong} of {gated} answers that generate made again alone are the same"
    parted = f", {ties} {'parts' if ties == 1 else 'part'} at a near-tie" if ties else ""
    return same + parted + (f", {wrong} {'is' if wrong == 1 else 'are'} wrong" if wrong else "")
