"""Charts of activation extraction: a batch by stages, the ceilings, and what a linear probe reads in a
store."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.bench.wording import counted, span, within
from llama_lab.experiments.activation_extraction import finding, probing, rungs
from llama_lab.experiments.activation_extraction import table as extraction_table
from llama_lab.experiments.activation_extraction.passes import Extraction
from llama_lab.experiments.activation_extraction.rungs import CEILINGS
from llama_lab.figures import bars, notes, rows
from llama_lab.figures.bars import Part
from llama_lab.figures.style import GREY, LIMIT_COLOUR, OTHERS, headline, new, styled

LABELS = {
    rungs.PACKED: "packing",
    rungs.ASYNC: "+ async copies",
    rungs.PRODUCT: "+ writer threads (extract)",
    rungs.FORWARD: "ceiling: forward only",
    rungs.DISK: "ceiling: disk only",
}
ALONE = {rungs.FORWARD: "the forward pass alone", rungs.DISK: "the disk alone"}  # of CEILINGS
EITHER = "the slower ceiling"  # where that is not the same one in each block
OURS, FAR = OTHERS[0], 2.0  # times the slower ceiling: from there on the other one is named, not drawn


def passes(axes, values: Sequence[float], height: float, shade: str) -> None:
    rows.points(axes, values, height, shade, spread=0.16, even=True, s=13, alpha=0.55)


def band(axes, summary, height: float, shade: str) -> None:
    rows.interval(axes, summary, height, shade, mark=14, edge=2, linewidth=6, alpha=0.4)


@styled
def extraction_limits(trials: Sequence[Extraction], seed: int = 0) -> Figure:
    """Tokens/s of `extract` and of the two rungs before it beside both ceilings, and their shares of the slower one. A
    ceiling far beyond the others is named at the edge."""
    table = {e["subject"]: e for e in extraction_table.table(trials, seed) if e["rate"].n}
    ceilings = sorted((name for name in CEILINGS if name in table), key=lambda name: table[name]["rate"].median)
    names = [name for name in LABELS if name in table]
    slow = {name: table[name]["rate"].median for name in ceilings}
    far = [name for name in ceilings[1:] if slow[name] > FAR * slow[ceilings[0]]]
    figure, axes = new(9, 0.5 * len(names) + 1.8)
    heights = rows.heights(axes, [LABELS[name] for name in names])
    for name, height in zip(names, heights.values(), strict=True):
        rate, shade = table[name]["rate"], LIMIT_COLOUR if name in CEILINGS else OURS
        if name in far:
            words = f"{rate.median:,.0f} tokens/s, beyond this axis →"
            rows.beside(axes, height, words, x=0.995, ha="right", color=shade)
            continue
        passes(axes, table[name]["values"], height, shade)
        band(axes, rate, height, shade)
        rows.beside(axes, height, "" if name in CEILINGS else share_of(extraction_table.overlap(trials, name, seed)))
    axes.set_xlim(left=0)
    overlap, slower = extraction_table.overlap(trials, seed=seed), ALONE.get(finding.one_ceiling(trials), EITHER)
    if overlap.n:
        rows.beside(axes, len(names) - 0.45, f"of {slower},\nmean of {overlap.n} pairs", color=GREY)
    n = counted(table[name]["rate"].n for name in names)
    axes.set_xlabel(f"tokens/s (point: one pass; bar: median; band: 95% interval, {n} passes)", fontsize=10)
    verdict = "whether it is slower is undecided" if overlap.verdict == Verdict.UNDECIDED else overlap.verdict
    said = f"Extraction (`extract`) runs at {share_of(overlap)} of the rate of {slower}: {verdict}"
    headline(figure, said if overlap.n else "Overlap: not measured")
    return figure


def share_of(ratio: Ratio) -> str:
    """`93% [90, 96]`."""
    return f"{100 * ratio.value:.0f}%{within(ratio, lambda share: f'{100 * share:.0f}')}" if ratio.n else "no share"


@styled
def extraction_probe(entries: Sequence[dict]) -> Figure:
    """How well a linear probe reads a property of a token from each layer; band: 95% interval. What the probe reads
    that was fitted on shuffled labels stands in words."""
    figure, axes = new(9, 4.6)
    if not entries:
        notes.empty(axes, "no linear probe: not asked for, or too few tokens")
        headline(figure, "No linear probe was fitted")
        return figure
    layers, low, high = ([e[key] for e in entries] for key in ("layer", "low", "high"))
    axes.plot(layers, [e["auc"] for e in entries], color=OURS, marker="o", markersize=4.5, linewidth=1.6)
    axes.fill_between(layers, low, high, color=OURS, alpha=0.18, linewidth=0)
    first, best = entries[0], max(entries, key=lambda e: e["auc"])
    inside = [e["auc"] >= best["low"] for e in entries]  # the interval of the best
    early = next(e["layer"] for i, e in enumerate(entries) if all(inside[i:]) or e is best)
    axes.axvline(early, color=GREY, linestyle="--", linewidth=1)
    axes.plot(best["layer"], best["auc"], "o", color=OURS, markersize=9)
    words = f" layer {early}: from here on within\n the interval of the best, layer {best['layer']}"
    axes.text(early, 0.04, words, transform=axes.get_xaxis_transform(), fontsize=9.5, color=GREY)
    controls = span(e["control"] for e in entries)
    axes.set_xlabel(
        f"layer after which the residual stream is read (0: the embedding)\n{first['tokens']:,} tokens of"
        f" {first['examples']} examples, {first['share']:.0%} of the tokens with the property; band: 95% interval over"
        f" {probing.FOLDS} folds\n(fitted on shuffled labels: {controls} in all layers)",
        fontsize=9.5,
    )
    axes.set_ylabel("area under the ROC curve")
    words = f"A linear probe reads “{first['property']}” from layer {early} on about as well as in its best layer"
    headline(figure, words)
    return figure


@styled
def extraction_budget(batches: Sequence[dict[str, float]]) -> Figure:
    """Milliseconds of one batch by stage, one stacked bar of medians. batches: `table.budget`."""
    figure, axes = new(10, 2.6)
    if not batches:
        notes.bare(axes, "The budget of a batch is not recorded.")
        headline(figure, "The budget of a batch is not recorded")
        return figure
    middles = {stage: max(0.0, float(np.median([ms[stage] for ms in batches]))) for stage in batches[0]}
    looks = zip(middles.items(), OTHERS, ("", "//", "..", "xx", "\\\\"), strict=False)
    parts = [(ms, Part(shade, hatch, f"{stage} {ms:.1f} ms")) for (stage, ms), shade, hatch in looks]
    whole = bars.stack(axes, 0, parts, 0.6)
    axes.set_yticks([])
    axes.set_ylim(-0.5, 0.5)
    axes.set_xlabel(f"milliseconds a batch, each stage waited for (medians of {len(batches)} units)")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.45), ncols=5, fontsize=9.5)
    most = max(middles, key=middles.get)
    share, name = middles[most] / whole if whole else 0, {"forward": "the forward pass"}.get(most, most)
    headline(figure, f"{name[0].upper()}{name[1:]} takes {share:.0%} of a batch's {whole:.0f} ms")
    return figure
