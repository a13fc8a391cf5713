"""What compiled kernels gain, and where a token's time goes under them: a sentence for a notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from llama_lab.bench import standings, summary
from llama_lab.bench.claim import Claim, stated
from llama_lab.bench.statistics import Verdict
from llama_lab.bench.wording import listed
from llama_lab.experiments.compiled_kernels import rows, scaling, sizes


def claim(by_size: Sequence[dict], by_file: Sequence[dict] = ()) -> Claim:
    """On how many files our fastest placement decodes faster than all others measured, after the shorter text; of
    by_file under each set of instructions that it was timed with. Both are of `sizes.table`."""
    every = [*by_size, *by_file]
    mine = [e for e in sizes.ours(every) if e["what"] == sizes.DECODE]
    mine = [e for e in mine if e["name"] == mine[0]["name"] and e["tokens"] == min(m["tokens"] for m in mine)]
    if not mine:
        return Claim("No size of model was measured with compiled kernels.")
    others = listed(list(dict.fromkeys(e["backend"] for e in every if e["backend"] != standings.JAX)))
    limited = {e["file"] for e in by_file}  # MODEL/INSTRUCTIONS: one file may be there several times
    verdicts = summary.grouped(
        mine,
        lambda e: e["file"].rpartition("/")[0] if e["file"] in limited else e["file"],
        lambda e: e["ratio"].verdict,
    )
    ahead = sum(set(found) == {Verdict.FASTER} for found in verdicts.values())
    said = "After {tokens} tokens compiled kernels decode faster than {others} on {ahead} of {n} files."
    return stated(said, tokens=mine[0]["tokens"], others=others, ahead=ahead, n=len(verdicts))


def lost(entries: Sequence[dict]) -> str:
    """`slower than the best other engine in 4 of 57 cases, most at 0.66x [0.46, 0.92] (reading 400 tokens,
    qwen2.5-coder-0.5b/avx2, ik-llamacpp)`. A case is a file and a request. entries: of `sizes.table`."""
    cases = sizes.fastest(entries)
    slower = [e for e in cases if e["ratio"].verdict == Verdict.SLOWER]
    words = f"slower than the best other engine in {len(slower)} of {len(cases)} cases"
    if not slower:
        return words * bool(cases)
    worst = min(slower, key=lambda e: e["ratio"].value)
    does = {sizes.DECODE: "after {:,} tokens", sizes.PREFILL: "reading {:,} tokens"}[worst["what"]]
    where = f"{does.format(worst['tokens'])}, {worst['file']}, {worst['best']}"
    return f"{words}, most at {worst['ratio'].words} ({where})"


def least_and_most(by_size: Sequence[dict]) -> str:
    """`decode rate over the best other engine: 1.14x [1.11, 1.17] (ik-llamacpp, llama-3.2-1b/q4_0, 828 MB a token) to
    ...`, of what the claim counts; "" without a peer."""
    mine = [e for e in sizes.fastest(by_size) if e["what"] == sizes.DECODE]
    mine = sorted((e for e in mine if e["tokens"] == mine[0]["tokens"]), key=lambda e: e["ratio"].value)
    ends = [f"{e['ratio'].words} ({e['best']}, {e['file']}, {e['bytes'] / 1e6:,.0f} MB a token)" for e in mine]
    return f"decode rate over the best other engine: {' to '.join(dict.fromkeys((ends[0], ends[-1])))}" if ends else ""


def beside_best(entries: Sequence[dict]):
    """The fastest placement over the best peer on the same file, a line per file, a column per request, a
    pandas.DataFrame. entries: of `sizes.table`."""
    import pandas as pd

    asked = {sizes.DECODE: "after {:,} tokens", sizes.PREFILL: "reading {:,} tokens"}
    lines: dict[str, dict] = {}
    for e in sizes.fastest(entries):
        line = lines.setdefault(e["file"], {})
        line[asked[e["what"]].format(e["tokens"])] = f"{e['ratio'].words} {e['best']}"
    return pd.DataFrame.from_dict(lines, orient="index").rename_axis("file").sort_index()


def halved(entries: Sequence[dict]) -> str:
    """At how many megabytes a token the lead over the best peer is half of that on the smallest file, or that it never
    is. entries: of `sizes.ours`, of one context."""
    if len(entries) < 2:
        return "one size alone does not say how the lead changes"
    first, *others = sorted(entries, key=lambda e: e["bytes"])
    half = next((e for e in others if e["ratio"].value <= first["ratio"].value / 2), None)
    said = f"first at {half['bytes'] / 1e6:,.0f} MB a token" if half else "at none of these sizes"
    return f"half of the smallest file's lead, or less: {said}"


def instructions(entries: Sequence[dict]) -> str:
    """`qwen2.5-coder-0.5b after 64 tokens: avx2 1.75x [1.74, 1.77], avx512vnni 2.05x [2.01, 2.10]`: the rate over the
    best peer's, a line per file and context that was timed with several. entries: of `sizes.table`."""
    lead: dict[tuple, dict[str, str]] = {}
    for e in (e for e in sizes.fastest(entries) if e["what"] == sizes.DECODE):
        file, _, isa = e["file"].rpartition("/")
        lead.setdefault((file, e["tokens"]), {})[isa] = e["ratio"].words
    lines = [
        f"{file} after {tokens:,} tokens: " + ", ".join(f"{isa} {words}" for isa, words in sorted(of_one.items()))
        for (file, tokens), of_one in sorted(lead.items())
        if len(of_one) > 1
    ]
    return "\n".join(lines)


def apart(grown: Mapping[str, Mapping[str, Sequence[dict]]], above: str, below: str) -> str:
    """`loop+fused over llamacpp by context, 256: 2.96x, 4096: 2.73x`: the ratio of two subjects' median rates, a line
    an axis. grown: axis → `scaling.axis_of`."""
    lines = []
    for axis, found in grown.items():
        if above in found and below in found:
            of = {p["value"]: p["rate"].median for p in found[below]}
            ratios = [
                f"{p['value']}: {p['rate'].median / of[p['value']]:.2f}x" for p in found[above] if p["value"] in of
            ]
            lines.append(f"{above} over {below} by {axis}, {', '.join(ratios)}")
    return "\n".join(lines)


def hidden(entry: dict, part: str) -> bool:
    """Whether noise hides a part of a token's time: its interval reaches 0."""
    return math.isfinite(entry[f"{part}_low"]) and not entry[f"{part}_low"] > 0


def kept(by_context: Mapping[str, Sequence[dict]]) -> str:
    """`from context 256 to 4096 loop+fused keeps 35% of its rate and llamacpp 43%; n = 2 answers a point do not tell
    them apart`, where the intervals of the rates allow all of them the same share."""
    known = {name: points for name, points in by_context.items() if len(points) > 1}
    if not known:
        return ""
    first, last = (next(iter(known.values()))[i]["value"] for i in (0, -1))
    (name, left), *others = ((name, f"{scaling.kept(points):.0%}") for name, points in known.items())
    words = listed([f"{name} keeps {left} of its rate", *(" ".join(other) for other in others)])
    n = min(p["rate"].n for points in known.values() for p in points)
    shares = [
        (points[-1]["rate"].low / points[0]["rate"].high, points[-1]["rate"].high / points[0]["rate"].low)
        for points in known.values()
    ]
    told = max(low for low, _ in shares) > min(high for _, high in shares)
    aside = (
        f" (medians of n = {n} answers)" if told or not others else f"; n = {n} answers a point do not tell them apart"
    )
    return f"from context {first} to {last} {words}{aside}"


def together(costs: Sequence[dict]) -> str:
    """`a pass of 8 tokens takes 1.65x [1.60, 1.70] as long as a pass of one in loop+fused`, every engine's, of the most
    rows of a sequence at the shortest context. costs: of `rows.table`."""
    known = [e for e in costs if e["kind"] == rows.SEQUENCE and e["rows"] > 1 and e["ratio"].n]
    most, context = max((e["rows"] for e in known), default=0), min((e["context"] for e in known), default=0)
    here = [e for e in known if (e["rows"], e["context"]) == (most, context)]
    words = [f"{e['ratio'].words}{' as long as a pass of one' * (e is here[0])} in {e['engine']}" for e in here]
    return f"a pass of {most} tokens takes {listed(words)}" if words else ""
