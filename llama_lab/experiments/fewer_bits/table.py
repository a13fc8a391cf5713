"""One line a subject: rate, share of the bandwidth, memory and quality side by side."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench import footprints, roofline, standings, statistics, summary
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio
from llama_lab.experiments.fewer_bits import reading
from llama_lab.experiments.fewer_bits.reading import ALL, Reading, read_as


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
    bytes of each process,
    distance: text → entry of `reading.table`, {} where it was not read}."""
    found, run = standings.ladder(trials, names, seed, run_of(context)), run_of(context)
    peaks = {f["name"]: f["peak"] for f in footprints.table(trials, notes, names)}
    for e in found:
        good = [t for t in summary.warm(standings.of(trials, run), e["name"]) if t.bytes_per_token and t.bandwidth_gbps]
        e |= dict(
            mbu=statistics.summarise([t.mbu for t in good], seed, [t.process for t in good]),
            bytes=good[0].bytes_per_token if good else None,
            flops=good[0].flops_per_token if good else None,
            peak=peaks.get(e["name"], []),
            distance={d["text"]: d for d in distances if d["subject"] == read_as(e["name"])},
        )
    return found


def probes(meta: dict, trials: Sequence[Trial], context: int) -> dict:
    """What the probes of a context read: {max, median, min in GB/s, n}; of a table that was written before it said so,
    the most of them."""
    return (meta.get("bandwidth_gbps") or roofline.spread(trials))[run_of(context)]


def rival(entries: Sequence[dict], same_file: bool) -> dict | None:
    """llama.cpp's fastest mode: of those that read the very file, or of all, its own quantisations among them."""
    return standings.best(
        entries, lambda e: e["backend"] == standings.LLAMACPP and (e["name"] in standings.SAME_FILE or not same_file)
    )


def fastest(entries: Sequence[dict]) -> dict | None:
    """The fastest placement, in whatever arithmetic."""
    return standings.best(entries, lambda e: e["backend"] == standings.JAX)


def ratio(trials: Sequence[Trial], above: str, below: str, context: int, seed: int = 0) -> Ratio:
    """Decode rate of one subject over another's at a context, paired by block."""
    return standings.ratio(trials, above, below, seed, run_of(context))


def as_frame(entries: Sequence[dict], trials: Sequence[Trial], context: int, seed: int = 0):
    """The ladder for a notebook, a pandas.DataFrame: one row a subject, the ratio that over llama.cpp's fastest mode of
    the same file."""
    import pandas as pd

    other, rows = rival(entries, True), []
    for e in entries:
        over = (
            ratio(trials, e["name"], other["name"], context, seed)
            if other and e["decode"].n
            else Ratio(*[float("nan")] * 3, 0)
        )
        known, far = e["distance"], e["distance"].get(ALL, {})
        rows.append(
            {
                "subject": e["name"],
                "weights": e["dtype"],
                "tok/s": e["decode"].median,
                "low": e["decode"].low,
                "high": e["decode"].high,
                "over llama.cpp": over.value,
                "ratio low": over.low,
                "ratio high": over.high,
                "MBU": e["mbu"].median,
                "MB a token": e["bytes"] and e["bytes"] / 1e6,
                "peak MB": summary.median(e["peak"]) / 1e6 if e["peak"] else None,
                "KL": far.get("kl"),
                "KL low": far.get("kl_low"),
                "KL high": far.get("kl_high"),
                "top-1": far.get("top1"),
                **{f"perplexity, {text}": known.get(text, {}).get("ppl") for text in reading.TEXTS},
                "valid": e["decode"].n,
                "void": e["void"],
            }
        )
    return pd.DataFrame(rows).set_index("subject").round(4)


def distance_frame(rows: Sequence[Reading], seed: int = 0):
    """Every subject and text for a notebook, a pandas.DataFrame."""
    import pandas as pd

    return pd.DataFrame([{
        "subject": e["subject"], "text": e["text"], "KL, nats": e["kl"], "KL low": e["kl_low"], "KL high": e["kl_high"],
        "top-1": e["top1"], "top-1 low": e["top1_low"], "top-1 high": e["top1_high"],
        "perplexity": e["ppl"], "ppl low": e["ppl_low"], "ppl high": e["ppl_high"],
        "tokens": e["tokens"], "same model": "yes" if e["valid"] else "NO: " + "; ".join(e["reasons"]),
    } for e in reading.table(rows, seed)]).set_index(["subject", "text"])  # fmt: skip
