"""What the rows of an extraction say: rates and ratios of every rung, what each addition gained, and how near the
ceilings are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_lab.bench import frames, summary
from llama_lab.bench.experiment import whole
from llama_lab.bench.record import Row
from llama_lab.bench.statistics import Ratio
from llama_lab.experiments.activation_extraction import rungs
from llama_lab.experiments.activation_extraction.passes import LADDER, SCALING, Extraction
from llama_lab.experiments.activation_extraction.rungs import BASE, FIRST, PRODUCT


def ladder(rows: Sequence[Extraction], run: str = LADDER) -> list[Extraction]:
    """The rows of the ladder, or of another run like it, what an interrupted process left dropped."""
    return [row for row in whole(rows) if row.run == run]


def measured(rows: Sequence[Extraction]) -> list[str]:
    """Subjects that have rows, in the ladder's order; the denominator's twin is no subject of its own."""
    here = {row.subject for row in rows}
    return [name for name in rungs.SUBJECTS if name in here]


def table(rows: Sequence[Extraction], seed: int = 0, run: str = LADDER) -> list[dict]:
    """One entry per rung, in the ladder's order, of `summary.tally`: {subject, rate: Summary of tokens/s, ratio: Ratio
    to N1, …}, and {backend, programs and compile_s of its first pass (median of the processes), fill, batches, depth,
    sites, tokens, bytes_per_token, error}. Its reasons are those of its first passes too."""
    rows = ladder(rows, run)
    warm, order = [row for row in rows if row.phase == "warm"], [(name,) for name in measured(rows)]
    frame = summary.tally(warm, ["subject"], dict(rate="tg"), against=BASE, seed=seed, order=order)
    entries = frame.to_dict("records")
    for e in entries:
        first = [row for row in rows if row.subject == e["subject"] and row.phase == "cold"]
        every, about = e["every"] + first, e["first"] or first[0]
        e |= {name: getattr(about, name) for name in ("backend", "fill", "batches", "depth", "sites", "tokens")}
        e |= dict(
            values=e["points"]["rate"],
            wrong=any(row.wrong for row in every),
            reasons=sorted({row.reason for row in every if row.reason}),
            programs=middle([r.compiled for r in first]),
            compile_s=middle([r.compile_seconds for r in first]),
            bytes_per_token=about.bytes / about.tokens,
            error=max((r.error for r in every if r.error is not None), default=None),
        )
    return entries


def middle(values: Sequence[float]) -> float:
    return float(np.median(values)) if len(values) else float("nan")


COLUMNS = frames.Columns(
    {
        "rung": "subject",
        **frames.interval("tokens/s", "rate"),
        **frames.interval("x N1", "ratio", "value", ends="x "),
        "n": "rate.n",
        "void": "void",
        "programs": "programs",
        "compile s": "compile_s",
        "batches": "batches",
        "not padding": "fill",
        "layers run": "depth",
        "sites": "sites",
        "bytes/token": "bytes_per_token",
        "tokens": "tokens",
        "error": "error",
    },
    index="rung",
    digits={
        **dict.fromkeys(("tokens/s", "low", "high", "x N1", "x low", "x high"), 2),
        **{"compile s": 2, "not padding": 2, "bytes/token": 2, "error": 6},
    },
)


def gains(rows: Sequence[Extraction], seed: int = 0) -> dict[str, Ratio]:
    """Rung → its tokens/s over those of the rung that it adds one thing to."""
    rows = ladder(rows)
    here = measured(rows)
    steps = [(name, before) for name, before in rungs.ADDED_TO.items() if {name, before} <= set(here)]
    return {name: summary.paired_ratio(rows, name, before, seed) for name, before in steps}


def additions(rows: Sequence[Extraction], seed: int = 0) -> list[dict]:
    """{addition, to, ratio, verdict} of each of `gains`, and of the A/A control."""
    steps = [(name, rungs.ADDED_TO[name], ratio, ratio.judged) for name, ratio in gains(rows, seed).items()]
    steps.append(("A/A control", "itself", summary.control(ladder(rows), seed), "control"))
    return [dict(zip(("addition", "to", "ratio", "verdict"), step, strict=True)) for step in steps]


ADDITIONS = frames.Columns(
    {"addition": "addition", "to": "to", **frames.RATIO, "pairs": "ratio.n", "verdict": "verdict"}, digits=3
)


def overlap(rows: Sequence[Extraction], subject: str = PRODUCT, seed: int = 0) -> Ratio:
    """Overlap efficiency: tokens/s over those of the slower of the two ceilings, in pairs of a block that has both. 1
    would hide the other part entirely."""
    return summary.over(summary.rates(ladder(rows), subject), ceiling(rows), seed)


def ceiling(rows: Sequence[Extraction]) -> dict[tuple, float]:
    """Tokens/s of the slower of the two ceilings by (process, block), where both were measured."""
    forward, disk = (summary.rates(ladder(rows), name) for name in rungs.CEILINGS)
    return {place: min(forward[place], disk[place]) for place in sorted(forward.keys() & disk.keys())}


def rivals(rows: Sequence[Extraction], seed: int = 0) -> dict[str, Ratio]:
    """Rung of another implementation → the product's tokens/s over its."""
    rows = ladder(rows)
    here = measured(rows)
    return {name: summary.paired_ratio(rows, PRODUCT, name, seed) for name in rungs.RIVALS if name in here}


def like_for_like(rows: Sequence[Extraction], seed: int = 0) -> Ratio:
    """The product's tokens/s over those of N1 with the same layers: what all but the choice of layers gains."""
    return summary.paired_ratio(ladder(rows), PRODUCT, FIRST, seed)


def budget(meta: dict) -> list[dict[str, float]]:
    """{stage: ms per batch}, an entry a unit and pass; none where it was not measured."""
    return next((note["budget"] for note in meta.get("processes", ()) if "budget" in note), [])


def hidden(batches: Sequence[dict[str, float]]) -> str:
    """How many times as fast a batch would be without its copy, and without all but its longest stage. batches:
    `budget`."""
    if not batches:
        return "The budget of a batch is not recorded."
    middles = {stage: float(np.median([e[stage] for e in batches])) for stage in batches[0]}
    whole, longest = float(np.median([sum(e.values()) for e in batches])), max(middles, key=middles.get)
    return (
        f"One after the other the stages take {whole:.0f} ms. Without the copy a batch would be"
        f" {whole / (whole - middles['copy']):.2f} times as fast; a pipeline that hid everything but the longest stage"
        f" ({longest}, {middles[longest]:.0f} ms) could gain {whole / middles[longest]:.2f} times."
    )


def scaled(rows: Sequence[Extraction], seed: int = 0) -> list[dict]:
    """`over_base` of each number of processes, ascending, over the fewest."""
    rows = sorted((row for row in rows if row.run.startswith(SCALING) and row.valid), key=lambda row: row.workers)
    return over_base(rows, ["workers"], [row for row in rows if row.workers == rows[0].workers], seed)


def over_base(rows: Sequence[Row], by: Sequence[str], base: Sequence[Row], seed: int) -> list[dict]:
    """One entry per group of valid rows, of `summary.tally`: {…, rate: Summary of tokens/s, values, ratio: to that of
    the rows `base`, in pairs of a block}."""
    entries = summary.tally(rows, by, dict(rate="tg"), seed=seed, clusters=None).to_dict("records")
    rates = [{(0, row.block): row.tg for row in some} for some in (base, *(e["rows"] for e in entries))]
    return [
        e | dict(values=e["points"]["rate"], ratio=summary.over(at, rates[0], seed))
        for e, at in zip(entries, rates[1:], strict=True)
    ]
