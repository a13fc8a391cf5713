"""Charts of activation extraction: a batch by stages, the ceilings and the scaling, and what a linear probe reads in a
store."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench.statistics import Ratio
from llama_lab.bench.wording import within
from llama_lab.experiments.activation_extraction import probing, rungs
from llama_lab.experiments.activation_extraction import table as extraction_table
from llama_lab.experiments.activation_extraction.passes import Extraction
from llama_lab.experiments.activation_extraction.rungs import CEILINGS
from llama_lab.figures import bars, labels, notes, rows
from llama_lab.figures.bars import Part
from llama_lab.figures.style import GREY, LIMIT_COLOUR, OTHERS, headline, new, styled

LABELS = {
    rungs.PACKED: "packing",
    rungs.ASYNC: "+ async copies",
    rungs.PRODUCT: "+ writer threads = `extract`",
    rungs.FORWARD: "ceiling: forward only",
    rungs.DISK: "ceiling: disk only",
}
OURS = OTHERS[0]


def passes(axes, values: Sequence[float], height: float, shade: str) -> None:
    rows.points(axes, values, height, shade, spread=0.16, even=True, s=13, alpha=0.55)


def band(axes, summary, height: float, shade: str) -> None:
    rows.interval(axes, summary, height, shade, mark=14, edge=2, linewidth=6, alpha=0.4)


@styled
def extraction_limits(trials: Sequence[Extraction], seed: int = 0) -> Figure:
    """Left: tokens/s of `extract` beside the two ceilings, and its share of the slower one. Right: tokens/s by number
    of processes."""
    table = {e["subject"]: e for e in extraction_table.table(trials, seed) if e["rate"].n}
    figure, (left, right) = new(11.5, 4.6, columns=2, width_ratios=(3, 2.2))
    names = [name for name in LABELS if name in table]
    heights = rows.heights(left, [LABELS[name] for name in names])
    for name, height in zip(names, heights.values(), strict=True):
        rate, shade = table[name]["rate"], LIMIT_COLOUR if name in CEILINGS else OURS
        passes(left, table[name]["values"], height, shade)
        band(left, rate, height, shade)
        words = f"{rate.median:,.0f}"
        if name not in CEILINGS:
            words += f", {share_of(extraction_table.overlap(trials, name, seed))}\nof the slower ceiling"
        rows.beside(left, height, words, 8.5)
    left.set_xscale("log")
    left.margins(x=0.1)
    notes.plain(left.xaxis)
    labels.readable(left.xaxis)
    left.set_xlabel(
        "tokens/s, log scale (point: one pass;\nbar: median; band: 95 % interval; share: in pairs of a block)"
    )
    overlap = extraction_table.overlap(trials, seed=seed)
    reached = f"`extract` reaches {share_of(overlap)} of the slower of its two ceilings"
    headline(figure, reached if overlap.n else "Overlap: not measured")
    processes(right, extraction_table.scaled(trials, seed))
    return figure


def share_of(ratio: Ratio) -> str:
    """`93 % [90, 96]`."""
    return f"{100 * ratio.value:.0f} %{within(ratio, lambda share: f'{100 * share:.0f}')}" if ratio.n else "no share"


def processes(axes, scaled: Sequence[dict]) -> None:
    """Tokens/s by number of processes, each run a point, the line of exact proportion beside."""
    if not scaled:
        return notes.empty(axes, "not measured")
    first, below = scaled[0], dict(textcoords="offset points", ha="center", fontsize=8.5)
    for e in scaled:
        every = [e["workers"]] * len(e["values"])
        axes.scatter(every, e["values"], s=22, color=OURS, alpha=0.6, linewidths=0, zorder=3)
        over = "" if e is first else f", {e['ratio'].words}"
        words = f"{e['rate'].median:,.0f}{over} (n = {e['rate'].n})"
        axes.annotate(words, (e["workers"], e["rate"].median), (0, -22), **below)
    counts = [e["workers"] for e in scaled]
    axes.plot(counts, [e["rate"].median for e in scaled], color=OURS, linewidth=1.5)
    proportion = [first["rate"].median * n / first["workers"] for n in counts]
    axes.plot(counts, proportion, color=GREY, linestyle="--", linewidth=1)
    axes.set_xticks(counts)
    axes.margins(x=0.5)
    axes.set_ylim(bottom=0, top=1.25 * max(axes.get_ylim()[1], 1))
    axes.set_xlabel("processes (point: one run; dashed: in proportion;\nthe cores are shared among them)")
    axes.set_ylabel("tokens/s")


@styled
def extraction_probe(entries: Sequence[dict]) -> Figure:
    """How well a linear probe reads a property of a token from each layer, beside one fitted on shuffled labels; bands:
    95 % intervals."""
    figure, axes = new(9, 5)
    if not entries:
        notes.empty(axes, "no linear probe: not asked for, or too few tokens")
        headline(figure, "No linear probe was fitted")
        return figure
    layers = [e["layer"] for e in entries]
    shuffled = f"fitted on shuffled labels (band: 95 % of {probing.SHUFFLES} shuffles)"
    for name, prefix, shade, mark, label in (
        ("auc", "", OURS, "o", "the probe (band: 95 % interval over the folds)"),
        ("control", "control_", "#7F7F7F", "s", shuffled),
    ):
        low, high = ([e[f"{prefix}{end}"] for e in entries] for end in ("low", "high"))
        line = dict(color=shade, marker=mark, markersize=4.5, linewidth=1.6)
        axes.plot(layers, [e[name] for e in entries], label=label, **line)
        axes.fill_between(layers, low, high, color=shade, alpha=0.18, linewidth=0)
    axes.set_ylim(top=min(axes.get_ylim()[1], 1.005))
    axes.axhline(0.5, color=GREY, linestyle="--", linewidth=1)
    first = entries[0]
    axes.set_xlabel("layer after which the residual stream is read (0: the embedding)")
    axes.set_ylabel("area under the ROC curve (0.5: chance)")
    tokens = (
        f"{first['tokens']:,} tokens of {first['examples']} examples, {first['share']:.0%} of them with the property"
    )
    about = f"{tokens}; {probing.FOLDS} folds of whole examples"
    best = max(entries, key=lambda e: e["auc"])
    early = next(e["layer"] for e in entries if e["auc"] >= best["low"])  # within the interval of the best
    words = f"A linear probe reads “{first['property']}” as well as anywhere from layer {early} on"
    headline(figure, f"{words} (area up to {best['auc']:.2f}, 0.5 is chance)")
    figure.legend(loc="outside lower center", ncols=2, fontsize=9.5, title=about, title_fontsize=9.5)
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
    headline(figure, f"Of a batch's {whole:.0f} ms {most} takes {middles[most] / whole if whole else 0:.0%}")
    return figure
