"""What compiled kernels gain, and where a token's time goes under them: a sentence for a notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from llama_jax.kernels import isa
from llama_lab.bench import standings, summary
from llama_lab.bench.claim import Claim, stated
from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.bench.wording import listed, named_well
from llama_lab.experiments.compiled_kernels import rows, sizes, where


def claim(by_size: Sequence[dict], by_file: Sequence[dict] = ()) -> Claim:
    """On how many files our fastest placement decodes faster than all others measured, after the shorter text, of
    by_file under each set of instructions that it was timed with; and how many prompts it reads slower than another.
    Both are of `sizes.table`."""
    every = [*by_size, *by_file]
    mine = [e for e in sizes.ours(every) if e["what"] == sizes.DECODE]
    mine = [e for e in mine if e["name"] == mine[0]["name"] and e["tokens"] == min(m["tokens"] for m in mine)]
    if not mine:
        return Claim("No size of model was measured with compiled kernels beside another runtime.")
    limited = {e["file"] for e in by_file}  # MODEL/INSTRUCTIONS: one file may be there several times

    def model_of(e: dict) -> str:
        return e["file"].rpartition("/")[0] if e["file"] in limited else e["file"]

    verdicts = summary.grouped(mine, model_of, lambda e: e["ratio"].verdict)
    ahead = {file for file, found in verdicts.items() if set(found) == {Verdict.FASTER}}
    asked: dict[str, set] = {}  # files that each peer ran on
    for e in every:
        if e["backend"] != standings.JAX and model_of(e) in verdicts:
            asked.setdefault(e["backend"], set()).add(model_of(e))
    others = summary.grouped(sorted(asked), lambda backend: frozenset(asked[backend]))
    than = [
        f"{listed([named_well(name) for name in names])} on {len(ahead & files)} of {len(files)} files"
        for files, names in sorted(others.items(), key=lambda item: -len(item[0]))
    ]
    first = f"After {mine[0]['tokens']} tokens compiled kernels lead on {len(ahead)} of {len(verdicts)} files"
    return stated(f"{first}{behind(every)}. They decode faster than {', '.join(than)}.")


def behind(entries: Sequence[dict]) -> str:
    """`; limited to AVX2 they fall behind on 4 of 6 prompts`; without these words where other instructions lose one
    too, "" where no prompt was timed. entries: of `sizes.table`."""
    prompts = sizes.fastest([e for e in entries if e["what"] == sizes.PREFILL])
    slower = [e for e in prompts if e["ratio"].verdict == Verdict.SLOWER]
    narrow = [e for e in prompts if limited_to_avx2(e)]
    limited = slower and all(e in narrow for e in slower)
    words = f"; {'limited to AVX2 ' * bool(limited)}they fall behind on"
    return f"{words} {len(slower)} of {len(narrow if limited else prompts)} prompts" if prompts else ""


def limited_to_avx2(entry: dict) -> bool:
    return entry["file"].endswith("/avx2")


def machines(*tables: tuple[Sequence[dict], str]) -> str:
    """`measured: 5 files on AMD EPYC (AVX-512 VNNI), 6 files on ...`. tables: (of `sizes.table`, `machine_line`)."""
    said = []
    for entries, line in (table for table in tables if table[0]):
        parted = (e["file"].rpartition("/") for e in entries)
        files = {model if kind in isa.NEEDS else f"{model}/{kind}" for model, _, kind in parted}
        said.append(f"{len(files)} file{'s' * (len(files) > 1)} on {line.split(',')[0]}")
    return f"measured: {', '.join(said)}" if said else ""


def lost(entries: Sequence[dict]) -> str:
    """`slower than the best other runtime in 4 of 57 cases, most at 0.66x [0.46, 0.92] (reading 400 tokens,
    qwen2.5-coder-0.5b/avx2, ik_llama.cpp)`. A case is a file and a request. entries: of `sizes.table`."""
    cases = sizes.fastest(entries)
    slower = [e for e in cases if e["ratio"].verdict == Verdict.SLOWER]
    words = f"slower than the best other runtime in {len(slower)} of {len(cases)} cases"
    if not slower:
        return words * bool(cases)
    worst = min(slower, key=lambda e: e["ratio"].value)
    does = {sizes.DECODE: "after {:,} tokens", sizes.PREFILL: "reading {:,} tokens"}[worst["what"]]
    where = f"{does.format(worst['tokens'])}, {worst['file']}, {named_well(worst['best'])}"
    if limited_to_avx2(worst):
        where += "; our kernels limited to AVX2, the other runtime not"
    return f"{words}, most at {worst['ratio'].words} ({where})"


def least_and_most(by_size: Sequence[dict]) -> str:
    """`decode rate over the best other runtime after 64 tokens: 1.14x [1.11, 1.17] (ik_llama.cpp, llama-3.2-1b/q4_0,
    828 MB per token) to ...`, of what the claim counts; "" without a peer."""
    mine = [e for e in sizes.fastest(by_size) if e["what"] == sizes.DECODE]
    mine = sorted((e for e in mine if e["tokens"] == mine[0]["tokens"]), key=lambda e: e["ratio"].value)
    ends = [
        f"{e['ratio'].words} ({named_well(e['best'])}, {e['file']}, {e['bytes'] / 1e6:,.0f} MB per token)" for e in mine
    ]
    if not ends:
        return ""
    spread = " to ".join(dict.fromkeys((ends[0], ends[-1])))
    return f"decode rate over the best other runtime after {mine[0]['tokens']} tokens: {spread}"


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
    """`The lead is 122% on the smallest file, half of that or less from 144 MB per token on (56%), and least at 828 MB
    (14%)`: by how much our rate exceeds the best peer's. entries: of `sizes.ours`, of one context."""
    if len(entries) < 2:
        return "one size alone does not say how the lead changes"
    first, *others = sorted(entries, key=lambda e: e["bytes"])
    lead = {id(e): e["ratio"].value - 1 for e in entries}
    half = next((e for e in others if lead[id(e)] <= lead[id(first)] / 2), None)
    least = min(entries, key=lambda e: lead[id(e)])
    at = (
        f"first at {half['bytes'] / 1e6:,.0f} MB per token ({lead[id(half)]:.0%})" if half else "at none of these sizes"
    )
    return (
        f"The lead is {lead[id(first)]:.0%} on the smallest file, half of that or less {at}, "
        f"and least at {least['bytes'] / 1e6:,.0f} MB per token ({lead[id(least)]:.0%})"
    )


def instructions(entries: Sequence[dict]) -> str:
    """`qwen2.5-coder-0.5b after 64 tokens: avx2 1.75x [1.74, 1.77], avx512vnni 2.05x [2.01, 2.10], the ratio is 15%
    smaller with avx2`: the rate over the best peer's, a line
    per file and context that was timed with several. entries: of `sizes.table`."""
    lead: dict[tuple, dict[str, Ratio]] = {}
    for e in (e for e in sizes.fastest(entries) if e["what"] == sizes.DECODE):
        file, _, kind = e["file"].rpartition("/")
        lead.setdefault((file, e["tokens"]), {})[kind] = e["ratio"]
    lines = []
    for (file, tokens), of_one in sorted(lead.items()):
        if len(of_one) > 1:
            words = [f"{kind} {ratio.words}" for kind, ratio in sorted(of_one.items())]
            (_, most), (fewest, least) = (end(of_one.items(), key=lambda item: item[1].value) for end in (max, min))
            loss = f"the ratio is {1 - least.value / most.value:.0%} smaller with {fewest}"
            lines.append(f"{file} after {tokens:,} tokens: {', '.join([*words, loss])}")
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


def largest_part(entries: Sequence[dict]) -> str:
    """`of a token's time, 18.2 of 27.7 ms under loop and 2.1 of 3.8 ms under loop+fused go to the layers`: the part
    that takes most of the first placement's time, and what the last one makes of it; "" of none. entries: of
    `where.table`."""
    if not entries:
        return ""
    most = max((part for part in where.WORDS if part != "rest"), key=lambda part: entries[0][part])
    takes = [f"{e[most]:.1f} of {e['total']:.1f} ms under {e['name']}" for e in (entries[0], *entries[1:][-1:])]
    return f"of a token's time, {listed(takes)} go to the {where.WORDS[most]}"


def hidden(entry: dict, part: str) -> bool:
    """Whether noise hides a part of a token's time: its interval reaches 0."""
    return math.isfinite(entry[f"{part}_low"]) and not entry[f"{part}_low"] > 0


def stays(by_context: Mapping[str, Sequence[dict]], backends: Mapping[str, str]) -> str:
    """`loop+fused is 2.7 to 3.1 times as fast as llama.cpp from 256 to 4,096 tokens (n = 2)`: the fastest placement
    beside the fastest peer, by medians; "" without both. backends: of each subject."""
    first = {name: points[0]["rate"].median for name, points in by_context.items() if len(points) > 1}
    ours, others = ([name for name in first if (backends[name] == standings.JAX) == mine] for mine in (True, False))
    if not ours or not others:
        return ""
    above, below = (max(names, key=first.get) for names in (ours, others))
    of = {p["value"]: p["rate"] for p in by_context[below]}
    pairs = [(p["value"], p["rate"], of[p["value"]]) for p in by_context[above] if p["value"] in of]
    ratios = sorted(mine.median / theirs.median for _, mine, theirs in pairs)
    n, (start, *_), (end, *_) = min(min(a.n, b.n) for _, a, b in pairs), pairs[0], pairs[-1]
    return (
        f"{above} is {ratios[0]:.1f} to {ratios[-1]:.1f} times as fast as {named_well(below)} "
        f"from {int(start):,} to {int(end):,} tokens (n = {n})"
    )


def together(costs: Sequence[dict]) -> str:
    """`a pass of 8 tokens takes 1.65x [1.60, 1.70] as long as a pass of one in loop+fused`, every engine's, of the most
    rows of a sequence at the shortest context. costs: of `rows.table`."""
    known = [e for e in costs if e["kind"] == rows.SEQUENCE and e["rows"] > 1 and e["ratio"].n]
    most, context = max((e["rows"] for e in known), default=0), min((e["context"] for e in known), default=0)
    here = [e for e in known if (e["rows"], e["context"]) == (most, context)]
    words = [
        f"{e['ratio'].words}{' as long as a pass of one' * (e is here[0])} in {named_well(e['engine'])}" for e in here
    ]
    return f"a pass of {most} tokens takes {listed(words)}" if words else ""
