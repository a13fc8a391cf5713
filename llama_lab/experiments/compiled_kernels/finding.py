"""What compiled kernels gain, and where a token's time goes under them: a sentence for a notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import compress

from llama_jax.kernels import isa
from llama_lab.bench import standings, summary
from llama_lab.bench.claim import Claim, stated
from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.bench.wording import interval, listed, named_well, round_ratio, span
from llama_lab.experiments.compiled_kernels import commands, file_types, rows, scaling, sizes, where


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
        f"{listed([named_well(name) for name in names])} on {len(ahead & files)} of {len(files)}"
        for files, names in sorted(others.items(), key=lambda item: -len(item[0]))
    ]
    first = f"At a context of {mine[0]['tokens']} tokens compiled kernels lead on {len(ahead)} of {len(verdicts)} files"
    return stated(f"{first}{behind(every)}. They decode faster than {' and than '.join(than)} files.")


def behind(entries: Sequence[dict]) -> str:
    """`; with only our kernels limited to AVX2, they fall behind on 4 of 6 prompts`; without these words where other
    instructions lose one too, "" where no prompt was timed. entries: of `sizes.table`."""
    prompts = sizes.fastest([e for e in entries if e["what"] == sizes.PREFILL])
    slower = [e for e in prompts if e["ratio"].verdict == Verdict.SLOWER]
    narrow = [e for e in prompts if limited_to_avx2(e)]
    limited = slower and all(e in narrow for e in slower)
    words = f"; {'with only our kernels limited to AVX2, ' * bool(limited)}they fall behind on"
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
    """`slower than the best other runtime in 4 of 57 cases (at worst 0.66x [0.46, 0.92], reading 400 tokens,
    qwen2.5-coder-0.5b, ik_llama.cpp), undecided in 5`. A case is a file and a request. entries: of `sizes.table`."""
    cases = sizes.fastest(entries)
    slower = [e for e in cases if e["ratio"].verdict == Verdict.SLOWER]
    words = f"slower than the best other runtime in {len(slower)} of {len(cases)} cases"
    open_ = f", undecided in {sum(e['ratio'].verdict == Verdict.UNDECIDED for e in cases)}"
    if not slower:
        return (words + open_) * bool(cases)
    worst = min(slower, key=lambda e: e["ratio"].value)
    does = {sizes.DECODE: "at context {:,}", sizes.PREFILL: "reading {:,} tokens"}[worst["what"]]
    where = f"{does.format(worst['tokens'])}, {worst['file'].removesuffix('/avx2')}, {named_well(worst['best'])}"
    where += "; only our kernels limited to AVX2" * limited_to_avx2(worst)
    return f"{words} (at worst {worst['ratio'].words}, {where}){open_}"


def least_and_most(by_size: Sequence[dict]) -> str:
    """`decode rate over the best other runtime at that context: 1.14x [1.11, 1.17] (ik_llama.cpp, llama-3.2-1b/q4_0,
    828 MB per token) to ...`, of what the claim counts; "" without a peer."""
    mine = [e for e in sizes.fastest(by_size) if e["what"] == sizes.DECODE]
    mine = sorted((e for e in mine if e["tokens"] == mine[0]["tokens"]), key=lambda e: e["ratio"].value)
    ends = [
        f"{e['ratio'].words} ({named_well(e['best'])}, {e['file']}, {e['bytes'] / 1e6:,.0f} MB per token)" for e in mine
    ]
    if not ends:
        return ""
    spread = " to ".join(dict.fromkeys((ends[0], ends[-1])))
    return f"decode rate over the best other runtime at that context: {spread}"


def beside_best(entries: Sequence[dict]):
    """The fastest placement over the best peer on the same file, a line per file, a column per request, a
    pandas.DataFrame. entries: of `sizes.table`."""
    import pandas as pd

    asked = {sizes.DECODE: "at context {:,}", sizes.PREFILL: "reading {:,} tokens"}
    lines: dict[str, dict] = {}
    for e in sizes.fastest(entries):
        line = lines.setdefault(e["file"], {})
        line[asked[e["what"]].format(e["tokens"])] = f"{to_tell_from_one(e['ratio'])} {e['best']}"
    return pd.DataFrame.from_dict(lines, orient="index").rename_axis("file").sort_index()


def near_one(value: float) -> bool:
    """Whether two digits would print a number as 1.00 that is another."""
    return value != 1 and f"{value:.2f}" == "1.00"


def to_tell_from_one(ratio: Ratio) -> str:
    """A ratio's words, with three digits of an interval that two digits would let end at 1.00."""
    if not (near_one(ratio.low) or near_one(ratio.high)):
        return ratio.words
    return f"{ratio.value:.2f}x {interval(ratio, '.3f')}"


def halved(entries: Sequence[dict]) -> str:
    """`The lead halves by 144 MB per token: it is 122% on the smallest file, 56% there, and least (14%) at 828 MB per
    token`: by how much our rate exceeds the best peer's. entries: of `sizes.ours`, of one context."""
    if len(entries) < 2:
        return "one size alone does not say how the lead changes"
    first, *others = sorted(entries, key=lambda e: e["bytes"])
    lead = {id(e): e["ratio"].value - 1 for e in entries}
    half = next((e for e in others if lead[id(e)] <= lead[id(first)] / 2), None)
    least = min(entries, key=lambda e: lead[id(e)])
    at = f"by {half['bytes'] / 1e6:,.0f} MB per token" if half else "at none of these sizes"
    there = f", {lead[id(half)]:.0%} there" if half else ""
    return (
        f"The lead halves {at}: it is {lead[id(first)]:.0%} on the smallest file{there}, "
        f"and least ({lead[id(least)]:.0%}) at {least['bytes'] / 1e6:,.0f} MB per token"
    )


def instructions(entries: Sequence[dict]) -> str:
    """`In decoding the ratio is 11% to 39% smaller with avx2; in 2 of 4 cases the intervals are apart (11% to 14%).`:
    our rate over the best peer's, on files that were timed with several sets of instructions; a line for decoding and
    one for prompts. A case is a file and a request. entries: of `sizes.table`."""
    cases = summary.grouped(sizes.fastest(entries), lambda e: (e["what"], e["file"].rpartition("/")[0], e["tokens"]))
    lines = []
    for asked, words in {sizes.DECODE: "decoding", sizes.PREFILL: "reading prompts"}.items():
        several = [some for (what, *_), some in cases.items() if what == asked and len(some) > 1]
        pairs = [[end(some, key=lambda e: e["ratio"].value) for end in (min, max)] for some in several]
        losses = [1 - least["ratio"].value / most["ratio"].value for least, most in pairs]
        shown = [least["ratio"].high < most["ratio"].low for least, most in pairs]
        if pairs:
            fewest = listed([*dict.fromkeys(least["file"].rpartition("/")[2] for least, _ in pairs)])
            apart = f"in {sum(shown)} of {len(pairs)} cases the intervals are apart"
            apart += f" ({span(compress(losses, shown), '.0%')})" * any(shown)
            lines.append(f"In {words} the ratio is {span(losses, '.0%')} smaller with {fewest}; {apart}.")
    return "\n".join(lines)


def types(entries: Sequence[dict]) -> str:
    """How many types have kernels, on how many files of those we are ahead of llama.cpp, and on how many files our
    distance from the float32 model is not shown to be larger. entries: of `file_types.table`."""
    timed, asked = ([e for e in entries if e[field] is not None] for field in ("ratio", "within"))
    if not timed:
        return file_types.words(entries)
    own = [e["type"].upper() for e in entries if e["kernel"]]
    ours, close = [e for e in timed if e["kernel"]], [e for e in asked if e["within"]]
    ahead = [e for e in ours if e["ratio"].low > 1]
    rest = f" The ratios of the {len(timed) - len(ours)} others compare different bytes: ours read them as Q8_0."
    return (
        f"Of {len(entries)} types that are read {len(own)} have kernels of their own: {', '.join(own)}.\n"
        f"On files of these types we decode faster than llama.cpp in {len(ahead)} of {len(ours)}."
        f"{rest * (len(timed) > len(ours))}\n"
        f"No larger distance from float32 is shown on {len(close)} of {len(asked)}."
    )


def rounded_again(entries: Sequence[dict]) -> str:
    """`Without a kernel of its own our distance is smaller than llama.cpp's on q2_k (0.16 against 0.52), not told from
    it on mxfp4 (0.0071 against 0.0049), and larger on f16 (...)`, by the intervals. entries: of `file_types.table`."""
    sides: dict[str, list[str]] = {"smaller than llama.cpp's on": [], "not told from it on": [], "larger on": []}
    for e in (e for e in entries if not e["kernel"] and e["within"] is not None):
        mine, theirs = e["mine"], e["theirs"]
        smaller, larger = mine["kl_high"] < theirs["kl_low"], not e["within"]
        side = "smaller than llama.cpp's on" if smaller else "larger on" if larger else "not told from it on"
        sides[side].append(f"{e['type']} ({mine['kl']:.2g} against {theirs['kl']:.2g})")
    said = [f"{side} {listed(names)}" for side, names in sides.items() if names]
    return f"Of types without a kernel our KL is {'; '.join(said)}." if said else ""


def command(entries: Sequence[dict]) -> str:
    """How many times as long as llama.cpp's our warm command takes, a line a length, for which it is the faster one,
    and what the very first one takes. entries: of `commands.table`."""
    ours = [e for e in entries if e["name"] != commands.PEER and e["ratio"]]
    warm, lines = [e for e in ours if e["phase"] == commands.WARM], []
    for tokens, some in summary.grouped(warm, lambda e: e["tokens"]).items():
        until = "to the first token" if tokens == 1 else f"for {tokens} tokens"
        words = [f"{e['ratio'].words} on {e['file']}" for e in some]
        lines.append(f"Time of our warm command over llama.cpp's, {until}: {listed(words)}.")
    ahead = [f"{e['tokens']} token{'s' * (e['tokens'] > 1)} of {e['file']}" for e in warm if e["ratio"].high < 1]
    lines += [f"Ours is shown to be the faster one for {listed(ahead) or 'none of these'}."] * bool(warm)
    theirs = {e["file"]: e["s"].median for e in entries if (e["phase"], e["name"]) == (commands.FIRST, commands.PEER)}
    first = [
        f"{e['s'].median:.1f} s against {theirs[e['file']]:.1f} s on {e['file']}"
        for e in ours
        if e["phase"] == commands.FIRST
    ]
    if first:
        lines.append(f"The very first command also compiles the kernels, once for each version: {listed(first)}.")
    return "\n".join(lines)


def apart(grown: Mapping[str, Mapping[str, Sequence[dict]]], above: str, below: str) -> str:
    """`loop+fused over llama.cpp by context, 256: 2.96x, 4096: 2.73x`: the ratio of two subjects' median rates, a line
    an axis. grown: axis → `scaling.axis_of`."""
    lines = []
    for axis, found in grown.items():
        if above in found and below in found:
            of = {p["value"]: p["rate"].median for p in found[below]}
            ratios = [
                f"{p['value']}: {p['rate'].median / of[p['value']]:.2f}x" for p in found[above] if p["value"] in of
            ]
            lines.append(f"{named_well(above)} over {named_well(below)} by {axis}, {', '.join(ratios)}")
    return "\n".join(lines)


def loses_most(by_context: Mapping[str, Sequence[dict]]) -> str:
    """`loop+fused loses most: from context 256 to 4096 it keeps 37% of its rate, llama.cpp 40%, loop 60%`, by medians;
    "" of one alone."""
    found = {name: points for name, points in by_context.items() if len(points) > 1}
    if len(found) < 2:
        return ""
    first, *others = sorted(found, key=lambda name: scaling.kept(found[name]))
    shares = [f"{named_well(name)} {scaling.kept(found[name]):.0%}" for name in others]
    ends = f"from context {found[first][0]['value']} to {found[first][-1]['value']}"
    kept = f"{ends} it keeps {scaling.kept(found[first]):.0%} of its rate"
    return f"{named_well(first)} loses most, by medians: {', '.join([kept, *shares])}"


def largest_part(entries: Sequence[dict]) -> str:
    """`the head takes 18.2 of a token's 27.7 ms under loop, and 2.1 of 3.8 ms under loop+fused`: the part that takes
    most of the first placement's time, and what the last one makes of it; "" of none. entries: of `where.table`."""
    if not entries:
        return ""
    most = max((part for part in where.WORDS if part != "rest"), key=lambda part: entries[0][part])
    layers = "the layers, apart from attention over the cache, take"
    part = {"layers": layers, "attention": "attention over the cache takes", "head": "the head takes"}[most]
    first, *last = (entries[0], *entries[1:][-1:])
    said = f"{part} {first[most]:.1f} of a token's {first['total']:.1f} ms under {first['name']}"
    return said + "".join(f", and {e[most]:.1f} of {e['total']:.1f} ms under {e['name']}" for e in last)


def first_and_last(entries: Sequence[dict]) -> str:
    """`from loop to loop+fused a token's time goes from 18.2 to 2.1 ms in the layers, from 4.7 to 1.2 in attention over
    the cache and from 5.3 to 0.7 in the head`: without parts that noise hides under either; "" where it hides all.
    entries: of `where.table`."""
    first, last = entries[0], entries[-1]
    words = {"layers": "the layers", "attention": "attention over the cache", "head": "the head"}
    known = [part for part in words if not (hidden(first, part) or hidden(last, part))]
    said = [f"from {first[p]:.1f} to {last[p]:.1f}{' ms' * (p == known[0])} in {words[p]}" for p in known]
    return f"from {first['name']} to {last['name']} a token's time goes {listed(said)}" if said else ""


def hidden(entry: dict, part: str) -> bool:
    """Whether noise hides a part of a token's time: its interval reaches 0."""
    return math.isfinite(entry[f"{part}_low"]) and not entry[f"{part}_low"] > 0


def by_threads(found: Mapping[str, Sequence[dict]]) -> str:
    """`median rate with 2 threads over that with 1: loop 1.39x, llama.cpp 1.10x (n = 2)`; "" of one number of threads.
    found: of `scaling.axis_of`."""
    several = {name: points for name, points in found.items() if len(points) > 1}
    if not several:
        return ""
    (first, *_, last), n = next(iter(several.values())), min(p["rate"].n for some in several.values() for p in some)
    gained = [f"{named_well(name)} {scaling.kept(points):.2f}x" for name, points in several.items()]
    return f"median rate with {last['value']} threads over that with {first['value']}: {', '.join(gained)} (n = {n})"


def stays(by_context: Mapping[str, Sequence[dict]], backends: Mapping[str, str]) -> str:
    """`loop+fused's median rates are 2.73 to 3.05 times llama.cpp's from 256 to 4,096 tokens (n = 2)`: the fastest
    placement beside the fastest peer; "" without both. backends: of each subject."""
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
        f"{above}'s median rates are {span(ratios, round_ratio)} times {named_well(below)}'s "
        f"from {int(start):,} to {int(end):,} tokens (n = {n})"
    )


def of_rows(costs: Sequence[dict], counts: Sequence[int] = (4, 8)) -> str:
    """`loop+fused, over one row: 4 rows of a sequence 1.12x to 1.20x, 8 rows 1.41x to 1.61x; ...`, over all contexts, a
    line an engine. costs: of `rows.table`."""
    lines = []
    for engine, some in summary.grouped([e for e in costs if e["ratio"].n], lambda e: e["engine"]).items():
        words = []
        for kind in rows.KINDS:
            for n in counts:
                found = [e["ratio"].value for e in some if (e["kind"], e["rows"]) == (kind, n)]
                words += [f"{n} rows of a {kind} {span(found, '{:.2f}x'.format)}"] if found else []
        lines += [f"{named_well(engine)}, over one row: {', '.join(words)}"] if words else []
    return "\n".join(lines)


def together(costs: Sequence[dict]) -> str:
    """`a pass over 8 tokens takes 4.4 to 4.7 times as long as over one in llama.cpp, 1.4 to 2.5 times in loop+fused`:
    of the most rows, over all kinds and contexts. costs: of `rows.table`."""
    known = [e for e in costs if e["rows"] > 1 and e["ratio"].n]
    most = max((e["rows"] for e in known), default=0)
    found = summary.grouped([e for e in known if e["rows"] == most], lambda e: e["engine"], lambda e: e["ratio"].value)
    first, *others = [(span(ratios, ".1f"), named_well(engine)) for engine, ratios in found.items()] or [("", "")]
    words = [f"{first[0]} times as long as over one in {first[1]}"]
    words += [f"{ratios} times in {name}" for ratios, name in others]
    return f"a pass over {most} tokens takes {', '.join(words)}" if known else ""
