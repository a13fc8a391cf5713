"""What the rows of an extraction say: rates and ratios of every rung, what each addition gained, and how near the
ceilings are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_lab.bench import AGAIN, statistics, summary
from llama_lab.bench.job import whole
from llama_lab.bench.published import figure_of
from llama_lab.bench.statistics import Ratio
from llama_lab.experiments.activation_extraction.plan import LADDER, SCALING, Extraction
from llama_lab.experiments.activation_extraction.rungs import (
    BASE,
    COPIES,
    DISK,
    FIRST,
    FORWARD,
    PRODUCT,
    RIVALS,
    STEPS,
    SUBJECTS,
)

# verdicts by which nothing was gained, or nothing that these data show
NOTHING = ("equal within 2 %", "inconclusive", "unstable")


def ladder(rows: Sequence[Extraction], run: str = LADDER) -> list[Extraction]:
    """The rows of the ladder, or of another run like it, what an interrupted process left dropped."""
    return [row for row in whole(rows) if row.run == run]


def measured(rows: Sequence[Extraction]) -> list[str]:
    """Subjects that have rows, in the ladder's order; the denominator's twin is no subject of its own."""
    here = {row.subject for row in rows}
    return [name for name in SUBJECTS if name in here]


def table(rows: Sequence[Extraction], seed: int = 0, run: str = LADDER) -> list[dict]:
    """One entry a rung, in the ladder's order: {subject, backend, rate: Summary of tokens/s, values, ratio: Ratio to
    N1, void, reasons, programs and compile_s of its first pass (median of the processes), fill, batches, depth, sites,
    tokens, bytes_per_token, error}."""
    rows, found = ladder(rows, run), []
    for name in measured(rows):
        warm, first = (
            summary.warm(rows, name, valid=False),
            [row for row in rows if row.subject == name and row.phase == "cold"],
        )
        good = [row for row in warm if row.valid]
        any_row = (warm + first)[0]
        values = [row.tg for row in good]
        found.append(
            dict(
                subject=name,
                backend=any_row.backend,
                values=values,
                rate=statistics.summarise(values, seed, [r.process for r in good]),
                ratio=summary.paired_ratio(rows, name, BASE, seed),
                void=len(warm) - len(good),
                wrong=any(row.wrong for row in warm + first),
                reasons=sorted({row.reason for row in warm + first if row.reason}),
                programs=middle([r.compiled for r in first]),
                compile_s=middle([r.compile_seconds for r in first]),
                fill=any_row.fill,
                batches=any_row.batches,
                depth=any_row.depth,
                sites=any_row.sites,
                tokens=any_row.tokens,
                bytes_per_token=any_row.bytes / any_row.tokens,
                error=max((r.error for r in warm + first if r.error is not None), default=None),
            )
        )
    return found


def middle(values: Sequence[float]) -> float:
    return float(np.median(values)) if len(values) else float("nan")


def ratio(rows: Sequence[Extraction], subject: str, other: str, seed: int = 0) -> Ratio:
    """Tokens/s of one rung over another's in pairs of a block."""
    return summary.paired_ratio(ladder(rows), subject, other, seed)


def gains(rows: Sequence[Extraction], seed: int = 0) -> dict[str, Ratio]:
    """Rung → its tokens/s over those of the rung that it adds one thing to."""
    here = measured(ladder(rows))
    return {name: ratio(rows, name, before, seed) for name, before in STEPS if {name, before} <= set(here)}


def gained(found: Ratio) -> str:
    """`1.62x [1.51, 1.73]`, and in words where that is nothing, or a loss, or undecided."""
    if not found.n:
        return "no pair of valid passes"
    if found.verdict == "equal within 2 %":
        return f"gains nothing: {found.words}"
    if found.verdict in NOTHING:
        return f"not decided: {found.words}"
    return f"loses: {found.words}" if found.value < 1 else found.words


def ceiling(rows: Sequence[Extraction]) -> dict[tuple[int, int], float]:
    """Tokens/s of the slower of the two ceilings, by (process, block) that has both."""
    forward, disk = (summary.rates(ladder(rows), name) for name in (FORWARD, DISK))
    return {key: min(forward[key], disk[key]) for key in forward.keys() & disk.keys()}


def overlap(rows: Sequence[Extraction], subject: str = PRODUCT, seed: int = 0) -> Ratio:
    """Overlap efficiency: tokens/s over those of the slower ceiling, in pairs of a block. 1 would hide the other part
    entirely."""
    return summary.over(summary.rates(ladder(rows), subject), ceiling(rows), seed)


def rivals(rows: Sequence[Extraction], seed: int = 0) -> dict[str, Ratio]:
    """Rung of another implementation → the product's tokens/s over its."""
    here = measured(ladder(rows))
    return {name: ratio(rows, PRODUCT, name, seed) for name in RIVALS if name in here}


def like_for_like(rows: Sequence[Extraction], seed: int = 0, run: str = LADDER) -> Ratio:
    """The product's tokens/s over those of N1 with the same layers: what all but the choice of layers gains."""
    return summary.paired_ratio(ladder(rows, run), PRODUCT, FIRST, seed)


PROMISED = {"six changes": ("gain, least", "gain, most"), "total potential": ("potential, least", "potential, most")}


def beside_the_promises(rows: Sequence[Extraction], seed: int = 0):
    """The gains that were promised of a careful first version, beside those measured: a pandas.DataFrame."""
    import pandas as pd

    here = ladder(rows)
    lines = [
        {"what": what, "promised": " to ".join(f"{figure_of('extraction', name):g}x" for name in names), "measured": ""}
        for what, names in PROMISED.items()
    ]
    for words, other in (
        ("everything, over N1 (every layer)", BASE),
        ("everything, over N1 with the same layers", FIRST),
        ("everything, over a loop of copies", COPIES),
    ):
        found = summary.paired_ratio(here, PRODUCT, other, seed)
        lines.append({"what": words, "promised": "", "measured": found.words if found.n else "not measured here"})
    for name, found in gains(rows, seed).items():
        lines.append({"what": f"{name} alone", "promised": "", "measured": gained(found)})
    return pd.DataFrame(lines).set_index("what")


def budget(meta: dict) -> list[dict[str, float]]:
    """{stage: ms a batch}, an entry a unit and pass; none where it was not measured."""
    return next((note["budget"] for note in meta.get("processes", ()) if "budget" in note), [])


def scaled(rows: Sequence[Extraction], seed: int = 0) -> list[dict]:
    """One entry a number of processes, ascending: {workers, values, rate: Summary, ratio: Ratio to the fewest, in pairs
    of a block}."""
    rows = [row for row in rows if row.run.startswith(SCALING) and row.valid]
    rates = {
        n: {(0, row.block): row.tg for row in rows if row.workers == n} for n in sorted({row.workers for row in rows})
    }
    return [
        dict(
            workers=n,
            values=list(at.values()),
            rate=statistics.summarise(list(at.values()), seed),
            ratio=summary.over(at, next(iter(rates.values())), seed),
        )
        for n, at in rates.items()
    ]


def as_frame(entries: Sequence[dict]):
    """The table for a notebook, a pandas.DataFrame, rounded for reading."""
    import pandas as pd

    return (
        pd.DataFrame(
            [
                {
                    "rung": e["subject"],
                    "tokens/s": e["rate"].median,
                    "low": e["rate"].low,
                    "high": e["rate"].high,
                    "x N1": e["ratio"].value,
                    "x low": e["ratio"].low,
                    "x high": e["ratio"].high,
                    "n": e["rate"].n,
                    "void": e["void"],
                    "programs": e["programs"],
                    "compile s": e["compile_s"],
                    "batches": e["batches"],
                    "not padding": e["fill"],
                    "layers run": e["depth"],
                    "sites": e["sites"],
                    "bytes/token": e["bytes_per_token"],
                    "tokens": e["tokens"],
                    "error": e["error"],
                }
                for e in entries
            ]
        )
        .set_index("rung")
        .round(
            {"error": 6}
            | dict.fromkeys(
                ("tokens/s", "low", "high", "x N1", "x low", "x high", "compile s", "not padding", "bytes/token"), 2
            )
        )
    )


def twin_is_equal(rows: Sequence[Extraction], seed: int = 0) -> Ratio:
    """The A/A control: the denominator's second pass in a block over its first."""
    rows = ladder(rows)
    return summary.over(summary.rates(rows, BASE + AGAIN), summary.rates(rows, BASE), seed)
