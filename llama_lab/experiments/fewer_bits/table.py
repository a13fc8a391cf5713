"""One line per subject: rate, share of the bandwidth, memory and quality side by side; and what fewer bits gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from llama_lab.bench import footprints, frames, quality, roofline, standings, statistics, summary
from llama_lab.bench.claim import Claim, Comparison, fastest_beside
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import NO_RATIO, Ratio
from llama_lab.bench.wording import interval, listed, named_well, span, weights
from llama_lab.experiments.fewer_bits.reading import ALL, read_as

ALIKE = 1.15  # as a factor of the fewest: bytes a token that count as about as few


def run_of(context: int) -> str:
    return f"context {context}"


def ladder(
    trials: Sequence[Trial],
    names: Sequence[str],
    context: int,
    distances: Sequence[dict],
    notes: Sequence[dict],
    seed: int = 0,
) -> list[dict]:
    """The entries of `standings.ladder` at one context, each with {mbu: Summary, bytes and flops: of a token, peak:
    bytes of each process, distance: text → entry of `reading.table`, {} where it was not read}."""
    run, peaks = run_of(context), {f["name"]: f["peak"] for f in footprints.table(trials, notes, names)}
    entries = standings.ladder(trials, names, seed, run)
    for e in entries:
        good = [t for t in e["rows"] if t.bytes_per_token and t.bandwidth_gbps]
        e |= dict(
            mbu=statistics.summarise([t.mbu for t in good], seed, [t.process for t in good]),
            bytes=good[0].bytes_per_token if good else None,
            flops=good[0].flops_per_token if good else None,
            peak=peaks.get(e["name"], []),
            distance={d["text"]: d for d in distances if d["subject"] == read_as(e["name"])},
        )
    return entries


def probes(meta: dict, trials: Sequence[Trial], context: int) -> dict:
    """What the probes of a context read: {max, median, min in GB/s, n}; of a table that was written before it said so,
    the most of them."""
    return (meta.get("bandwidth_gbps") or roofline.spread(trials))[run_of(context)]


def rival(entries: Sequence[dict], same_file: bool) -> dict | None:
    """llama.cpp's fastest mode: of those that read the very file, or of all, its own quantisations among them."""
    return standings.best(
        entries, lambda e: e["backend"] == standings.LLAMACPP and (e["name"] in standings.SAME_FILE or not same_file)
    )


def ratio(trials: Sequence[Trial], above: str, below: str, context: int, seed: int = 0) -> Ratio:
    """Decode rate of one subject over another's at a context, paired by block."""
    return standings.ratio(trials, above, below, seed, run_of(context))


def over_llamacpp(entries: Sequence[dict], trials: Sequence[Trial], context: int, seed: int = 0) -> list[dict]:
    """The entries at a context, each with `over`: its decode rate over that of llama.cpp's fastest mode of the same
    file."""
    other = rival(entries, True)
    return [
        e | dict(over=ratio(trials, e["name"], other["name"], context, seed) if other and e["decode"].n else NO_RATIO)
        for e in entries
    ]


def claim(trials: Sequence[Trial], entries: Mapping[int, Sequence[dict]], seed: int = 0) -> Claim:
    """The fastest placement beside llama.cpp on the same file. entries: context → `ladder`."""
    context = min(entries)
    mine, other = standings.fastest(entries[context]), rival(entries[context], True)
    if mine is None or other is None:
        return Claim(
            f"Of what was measured here {mine['name']} decodes fastest." if mine else "No placement has a time."
        )
    over = ratio(trials, mine["name"], other["name"], context, seed)
    return fastest_beside(Comparison(over, mine["name"], f"llama.cpp on the same {other['dtype']} file"))


def fewer_bits(trials: Sequence[Trial], entries: Mapping[int, Sequence[dict]], seed: int = 0) -> str:
    """Rates with and without fewer bits and what is kept, the claim, what the rounding of both costs, and the fastest
    placement beside llama.cpp's fastest quantisation."""
    context = min(entries)
    mine, other, details = standings.fastest(entries[context]), rival(entries[context], False), []
    if mine and other:
        over = ratio(trials, mine["name"], other["name"], context, seed)
        details = [
            cost([mine, rival(entries[context], True)]),
            kept([mine, rival(entries[context], True)]),
            Comparison(over, mine["name"], f"{named_well(other['name'])}, which reads {weights(other['dtype'])}").words,
        ]
    first, said = gained(entries[context]), claim(trials, entries, seed)
    if first and said.evidence:  # the sentence has the rates, and the ratio is among the details
        return Claim(first, said.evidence).text(*details)
    return " ".join(filter(None, [first, said.text(*details)]))


def gained(entries: Sequence[dict]) -> str:
    """`On the same q4_1 weights loop+fused makes 546 tokens/s (96.5% of float32's top tokens), llama.cpp 165 (95.9%),
    float32 74.`; "" if one of the three has no rate, or the fastest is not of fewer bits."""
    mine, other = standings.fastest(entries), rival(entries, True)
    whole = standings.fastest([e for e in entries if e["dtype"] == "float32"])
    if not (mine and other and whole) or mine["dtype"] == "float32":
        return ""
    rates = [f"{e['decode'].median:.0f}" for e in (mine, other, whole)]
    shares = [e["distance"].get(ALL, {}).get("top1") for e in (mine, other)]
    of = (" of float32 arithmetic's top tokens", "")
    equal = [f" ({share:.1%}{more})" for share, more in zip(shares, of, strict=True) if share is not None]
    equal = equal if len(equal) == len(shares) else ["", ""]
    alike = mine["dtype"] in ("gguf", other["dtype"])
    same = f"On the same {other['dtype']} weights" if alike else f"With {weights(mine['dtype'])}"
    said = f"{same} {mine['name']} makes {rates[0]} tokens/s{equal[0]}, "
    return said + f"{named_well(other['name'])} {rates[1]}{equal[1]}, float32 {rates[2]}."


def kept(entries: Sequence[dict | None]) -> str:
    """`top tokens equal to those of float32 arithmetic: 96.5% [95.7%, 97.3%] of 2,048 positions under
    loop+fused and ...`; "" of what was not read."""
    known = [(named_well(e["name"]), e["distance"].get(ALL, {})) for e in entries if e]
    words = [
        f"{d['top1']:.1%} {interval(d, '.1%', 'top1_')} of {d['tokens']:,} positions under {name}"
        for name, d in known
        if d.get("top1") is not None
    ]
    return f"top tokens equal to those of float32 arithmetic: {listed(words)}" if words else ""


def cost(entries: Sequence[dict | None]) -> str:
    """`KL divergence from float32 on the file's own weights: 0.0031 nats [0.0029, 0.0033] of loop+fused and ...`; ""
    of what was not read."""
    known = [(named_well(e["name"]), e["distance"].get(ALL, {})) for e in entries if e]
    words = [
        f"{d['kl']:.2g} nats {interval(d, '.2g', 'kl_')} of {name}" for name, d in known if d.get("kl") is not None
    ]
    return f"KL divergence from float32 on the file's own weights: {listed(words)}" if words else ""


def larger(files: Sequence[dict]) -> str:
    """`qwen2.5-coder-0.5b: 82.9 tokens/s as q4_0, 66.7 tokens/s as published; over the best other runtime 2.16x
    [2.12, 2.19] as q4_0, ...`, the fastest first, a line per model; and a line on whether fewer bytes are faster and
    the lead depends on the type. files: of `people_files.bits`."""
    models: dict[str, dict[str, dict]] = {}
    for e in (e for e in files if e["rate"]):
        model, _, kind = e["file"].partition("/")
        models.setdefault(model, {})[f"as {kind or 'published'}"] = e
    lines, lightest, depends = [], 0, 0
    for model, kinds in models.items():
        ordered = sorted(kinds.items(), key=lambda item: -item[1]["rate"].median)
        rates = ", ".join(f"{e['rate'].median:.1f} tokens/s {kind}" for kind, e in ordered)
        leads = ", ".join(f"{e['ratio'].words} {kind}" for kind, e in ordered)
        ratios = [e["ratio"] for e in kinds.values()]
        depends += max(r.low for r in ratios) > min(r.high for r in ratios)
        lightest += ordered[0][1]["bytes"] == min(e["bytes"] for e in kinds.values())
        lines.append(f"{model}: {rates}; over the best other runtime {leads}")
    if lines:
        of = f"of {len(lines)} model{'s' * (len(lines) > 1)}"
        lines.append(
            f"The type with the fewest bytes decodes fastest on {lightest} {of}; "
            f"the lead depends on the type (its intervals are apart) on {depends} {of}."
        )
    return "\n".join(lines)


def near_the_roof(entries: Sequence[dict]) -> str:
    """Whether the program that reads most, or those that read about the least, use more of the bandwidth:
    `Neither end is nearer by itself: loop, which reads 548 MB a token, uses 41%; of those that read 95 to 107 MB,
    loop+fused uses 64%, ..., loop+gguf 7%.`; "" of fewer than two. entries: of `ladder`."""
    known = sorted((e for e in entries if e["mbu"].n and e["bytes"]), key=lambda e: -e["mbu"].median)
    if len(known) < 2:
        return ""
    most, least = max(known, key=lambda e: e["bytes"]), min(e["bytes"] for e in known)
    few = [e for e in known if e["bytes"] <= ALIKE * least and e is not most]
    shares = [f"{named_well(e['name'])}{' uses' * (e is few[0])} {e['mbu'].median:.0%}" for e in few]
    above = sum(e["mbu"].median > most["mbu"].median for e in few)
    ends = {0: "More bytes are nearer", len(few): "Fewer bytes are nearer"}
    nearer = ends.get(above, "Neither end is nearer by itself")
    read = span((e["bytes"] / 1e6 for e in few), ".0f")
    return (
        f"{nearer}: {named_well(most['name'])}, which reads {most['bytes'] / 1e6:.0f} MB a token, uses "
        f"{most['mbu'].median:.0%} of the bandwidth; of those that read {read} MB, {listed(shares)}."
    )


def far(what: str, text: str = ALL) -> Callable:
    """A column of the distance from float32 on a text; None if it was not read."""
    return lambda e: e["distance"].get(text, {}).get(what)


COLUMNS = frames.Columns(
    {
        "subject": "name",
        "weights": "dtype",
        **frames.interval("tok/s", "decode"),
        **frames.interval("over llama.cpp", "over", "value", ends="ratio "),
        "MBU": "mbu.median",
        "MB per token": frames.scaled("bytes", 1e6),
        "peak MB": lambda e: summary.median(e["peak"]) / 1e6 if e["peak"] else None,
        "KL": far("kl"),
        "valid": "decode.n",
    },
    index="subject",
    digits={"tok/s": 1, "low": 1, "high": 1, "over llama.cpp": 2, "ratio low": 2, "ratio high": 2, "MBU": 2}
    | {"MB per token": 0, "peak MB": 0, "KL": 4},
)
TEXTS = frames.Columns(
    {
        "subject": "subject",
        **{"KL, nats": "kl", "KL low": "kl_low", "KL high": "kl_high"},
        **{"top-1": "top1", "top-1 low": "top1_low", "top-1 high": "top1_high"},
        **{"perplexity": "ppl", "ppl low": "ppl_low", "ppl high": "ppl_high"},
        "tokens": "tokens",
        "same model": quality.same_model,
    },
    index="subject",
    digits=dict.fromkeys(("KL, nats", "KL low", "KL high"), 4)
    | dict.fromkeys(("top-1", "top-1 low", "top-1 high"), 3)
    | dict.fromkeys(("perplexity", "ppl low", "ppl high"), 2),
)
