"""What compiled kernels gain, and where a token's time goes under them: a sentence for a notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from llama_lab.bench import standings
from llama_lab.bench.claim import Claim, stated
from llama_lab.bench.statistics import Verdict
from llama_lab.bench.wording import listed
from llama_lab.experiments.compiled_kernels import rows, scaling, sizes


def claim(by_size: Sequence[dict]) -> Claim:
    """On how many files our fastest placement decodes faster than all others measured."""
    mine = [e for e in sizes.ours(by_size) if e["what"] == sizes.DECODE]
    mine = [e for e in mine if e["name"] == mine[0]["name"] and e["tokens"] == min(m["tokens"] for m in mine)]
    if not mine:
        return Claim("No size of model was measured with compiled kernels.")
    others = listed(list(dict.fromkeys(e["backend"] for e in by_size if e["backend"] != standings.JAX)))
    numbers = dict(others=others, ahead=sum(e["ratio"].verdict == Verdict.FASTER for e in mine), n=len(mine))
    return stated("After short texts compiled kernels decode faster than {others} on {ahead} of {n} files.", **numbers)


def hidden(entry: dict, part: str) -> bool:
    """Whether noise hides a part of a token's time: its interval reaches 0."""
    return math.isfinite(entry[f"{part}_low"]) and not entry[f"{part}_low"] > 0


def kept(by_context: Mapping[str, Sequence[dict]]) -> str:
    """`from context 256 to 4096 loop+fused keeps 35% of its rate and llamacpp 43% (medians of n = 2 answers)`."""
    known = {name: points for name, points in by_context.items() if len(points) > 1}
    if not known:
        return ""
    first, last = (next(iter(known.values()))[i]["value"] for i in (0, -1))
    (name, left), *others = ((name, f"{scaling.kept(points):.0%}") for name, points in known.items())
    words = listed([f"{name} keeps {left} of its rate", *(" ".join(other) for other in others)])
    n = min(p["rate"].n for points in known.values() for p in points)
    return f"from context {first} to {last} {words} (medians of n = {n} answers)"


def together(costs: Sequence[dict]) -> str:
    """`8 tokens of a sequence in one pass take loop+fused 1.65x [1.60, 1.70] as long as one`, every engine's, of the
    most rows at the shortest context. costs: of `rows.table`."""
    known = [e for e in costs if e["kind"] == rows.SEQUENCE and e["rows"] > 1 and e["ratio"].n]
    most, context = max((e["rows"] for e in known), default=0), min((e["context"] for e in known), default=0)
    words = [f"{e['engine']} {e['ratio'].words}" for e in known if (e["rows"], e["context"]) == (most, context)]
    return f"{most} tokens of a sequence in one pass take {listed(words)} as long as one" if words else ""
