"""The chart of findings about XLA:CPU: how much longer the slow program takes, and what its program shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench.statistics import Verdict
from llama_lab.bench.wording import counted, round_ratio, span
from llama_lab.experiments.xla_cpu.measure import Outcome
from llama_lab.figures import notes, rows
from llama_lab.figures.style import GREY, colour, headline, new, styled

IN_WORDS = {  # a finding → its slow and its fast program, in the figure
    "bfloat16 product": ("weight in bfloat16", "weight in float32"),
    "int8 product": ("row as a matrix", "row as a vector"),
    "transposed rows": ("weight transposed first", "weight as it is"),
    "conversion once a call": ("a call for each of 8 tokens", "one call for all"),
    "cache in a scan": ("layers' caches in and out of the scan", "cache carried, one position written"),
    "weights in a scan": ("scan over the layers", "layers unrolled"),
    "cache of one row": ("cache with an axis for the batch", "cache without it"),
    "shared vector": ("two products with one vector", "one product, its result cut in two"),
}


def amount(value: int, unit: str) -> str:
    """`113 MB`, `40 kB`, `0`, or a plain count."""
    if not unit.startswith("bytes") or value == 0:
        return f"{value:,}"
    return f"{value / 1e6:.3g} MB" if value >= 1e6 else f"{value / 1e3:.3g} kB"


def evidence(outcome: Outcome) -> str:
    """What the compiled programs show, such as `temporaries: 113 MB against 0`."""
    unit, faults = outcome.finding.unit, outcome.faults
    words = f"{unit.removeprefix('bytes of ')}: {amount(outcome.slow, unit)} against {amount(outcome.fast, unit)}"
    return words + (f"; page faults: {faults[0]:,.0f} against {faults[1]:,.0f}" if max(faults) >= 1000 else "")


@styled
def xla_findings(outcomes: Sequence[Outcome]) -> Figure:
    """One row per finding, the largest first: slow over fast in time (point: a process; band: 95% interval)."""
    figure, axes = new(10, 1.6 + 0.66 * max(1, len(outcomes)))
    outcomes = sorted(outcomes, key=lambda o: -np.nan_to_num(o.ratio.value))
    heights = list(rows.heights(axes, [o.finding.name for o in outcomes]).values())
    both = [(o.finding.name, *IN_WORDS[o.finding.name]) for o in outcomes]
    words = [f"{name}\nslower: {slow}\nfaster: {fast}" for name, slow, fast in both]
    axes.set_yticks(heights, words, fontsize=9)
    shades = [colour("step") if outcome.holds else GREY for outcome in outcomes]
    for outcome, height, shade in zip(outcomes, heights, shades, strict=True):
        ratio = outcome.ratio
        rows.points(axes, outcome.pairs, height, shade, spread=0.12, s=16, alpha=0.5, zorder=1)
        words = "void: other numbers" if outcome.wrong and not outcome.pairs else "not measured"
        if np.isfinite(ratio.value):
            rows.interval(axes, ratio, height, shade, mark=16, edge=2, linewidth=9, alpha=0.3, zorder=(2, 2))
            words = ratio.words if outcome.holds else f"{ratio.words}, not seen with this jaxlib"
        rows.beside(axes, height, words, x=1.02)
    axes.axvline(1, color=GREY, linewidth=1)
    over = dict(ha="center", va="bottom", fontsize=9, color=GREY, transform=axes.get_xaxis_transform())
    axes.text(1, 1, "same time", **over)
    axes.set(xscale="log", xlim=(0.8, max([2.0, *(1.15 * p for o in outcomes for p in o.pairs)])))
    low, high = axes.get_xlim()
    arrows = ""
    for outcome, height, shade in zip(outcomes, heights, shades, strict=True):  # where an interval goes on
        for end, marker, beyond in ((low, "<", outcome.ratio.low < low), (high, ">", outcome.ratio.high > high)):
            if beyond:
                axes.plot(end, height, marker, color=shade, markersize=9, clip_on=False)
                arrows = "; arrow: it goes on"
    axes.set_xlabel(
        "how many times as long the slower way takes as the faster, log scale\n"
        f"(point: one of {counted(o.ratio.n for o in outcomes)} processes; "
        f"bar: mean; band: its 95% interval{arrows})"
    )
    notes.one_two_five(axes.xaxis)
    seen = [o for o in outcomes if o.holds and o.ratio.verdict == Verdict.SLOWER]
    if seen:
        where = f" in {len(seen)} of {len(outcomes)} cases" * (len(seen) < len(outcomes))
        times = span([o.ratio.value for o in seen], round_ratio)
        headline(figure, f"Two ways to write one computation in JAX: the slower takes {times} times as long{where}")
    else:
        headline(figure, "Of two ways to write one computation in JAX none is shown to be slower")
    return figure


def spellings(outcomes: Sequence[Outcome]) -> list[dict]:
    """The two programs of each finding, in words, their times and what the compiled programs show: lines of a table."""
    return [
        {
            "finding": o.finding.name,
            "slow program": o.finding.slow.words,
            "ms": f"{o.ms[0]:.3g}",
            "fast program": o.finding.fast.words,
            "its ms": f"{o.ms[1]:.3g}",
            "compiled programs": evidence(o),
        }
        for o in outcomes
    ]


def beside_float32(outcomes: Sequence[Outcome]) -> str:
    """`float32 product 3.60 ms; bfloat16 product 27.5 ms, 7.6 times as long; ...`: the slow programs of narrow weights
    beside the same product with a float32 weight, and whether they take longer; "" if they were not measured."""
    at = {o.finding.name: o.ms for o in outcomes}
    if not {"bfloat16 product", "int8 product"} <= at.keys():
        return ""
    whole = at["bfloat16 product"][1]  # its fast program has the float32 weight
    slow = [(name, at[name][0]) for name in ("bfloat16 product", "int8 product")]
    words = "; ".join(f"{name} {ms:.3g} ms, {ms / whole:.1f} times as long" for name, ms in slow)
    both = "both take longer" if min(ms for _, ms in slow) > whole else "not both take longer"
    return (
        f"float32 product {whole:.3g} ms; {words}: {both}, although they read fewer bytes\n"
        "(here and in the table medians of processes; in the figure the mean of each process's ratio)"
    )
