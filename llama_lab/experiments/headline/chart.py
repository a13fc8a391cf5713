"""What the headline says: a sentence and its detail, and a figure of this machine's answers with the published medians
beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from llama_lab.bench import AGAIN, standings, summary
from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio
from llama_lab.bench.wording import interval, listed, named_well, within
from llama_lab.experiments.headline.measure import BASELINE
from llama_lab.figures import labels, rows
from llama_lab.figures.style import GREY, LIMIT_COLOUR, colour, headline, new, styled

FLOAT32 = "float32 weights"
GAP = 0.35  # between groups of rows, in rows
RATE, RATIO = 1.13, 1.16  # where the columns at the right end and begin, as shares of the axes' width
SEEN = 0.2  # of the median: a narrower interval is hidden by the median's bar
UNJITTED, JITTED, FUSED, RIVAL = "eager", "loop", "loop+fused", "llamacpp"
PLACES = {  # where jit is, below the name
    "eager": "no jit",
    "ops": "jit: each matmul, norm, …",
    "layer": "jit: each layer",
    "split": "jit: model and sampler",
    "step": "jit: one token",
    "step" + AGAIN: "measured twice: the noise",
    "chunk8": "jit: eight tokens",
    "loop": "jit: whole answer",
    "step+fused": "jit: one token, kernel",
    "loop+fused": "jit: whole answer, kernel",
}


def compared(trials: Sequence[Trial], subject: str, baseline: str, seed: int) -> Comparison:
    return Comparison(summary.paired_ratio(trials, subject, baseline, seed), subject, baseline)


def claim(trials: Sequence[Trial], seed: int = 0) -> Claim:
    """What jit does to the rate, and what compiled kernels add to it."""
    gain, more = compared(trials, BASELINE, UNJITTED, seed), compared(trials, FUSED, JITTED, seed)
    said = "Jitting the step makes decoding {gain} times as fast"
    return (
        stated(said + "; quantised weights in a compiled kernel speed the loop up {more}-fold.", gain=gain, more=more)
        or stated(said + ".", gain=gain)
        or gain.generic
    )


def finding(trials: Sequence[Trial], seed: int = 0) -> str:
    """The claim, all rates, further ratios, and how far two equal subjects differed."""
    known = [name for name in (UNJITTED, BASELINE, JITTED, FUSED, RIVAL) if summary.warm(trials, name)]
    rates = [(e["name"], e["tokens_per_second"]) for e in summary.table(trials, BASELINE, known, seed)]
    shown = [f"{name} {rate['median']:.1f}{within(rate, '.1f')}" for name, rate in rates if rate["n"]]
    further = [
        compared(trials, *pair, seed) for pair in ((JITTED, BASELINE), (FUSED, RIVAL), (BASELINE + AGAIN, BASELINE))
    ]
    wrong = sorted({t.subject for t in trials if t.phase == "warm" and t.wrong})
    return claim(trials, seed).text(
        *(c.words for c in further if c.ratio.n),
        f"tokens/s: {', '.join(shown)}" if shown else "",
        f"{listed(wrong)} made other tokens than the reference" if wrong else "",
    )


def beside(table: Sequence[dict], published: Sequence[dict]) -> str:
    """The same subjects' rates here and on the machine that is published."""
    theirs = {e["name"]: e["tokens_per_second"] for e in published}
    both = [(e["name"], e["tokens_per_second"], theirs[e["name"]]) for e in table if e["name"] in theirs]
    return "; ".join(
        f"{name} {here['median']:.1f} {interval(here, '.1f')} here, {there['median']:.1f} published"
        for name, here, there in both
        if here["n"] and there["n"]
    )


def weights(trials: Sequence[Trial], name: str) -> str:
    """`float32 weights`, or the file that the kernels and llama.cpp read."""
    file = next((t.dtype for t in summary.warm(trials, RIVAL)), "quantised")
    kinds = {standings.weights(t) for t in summary.warm(trials, name)}
    return f"{file} file" if kinds - {"float32"} else FLOAT32


@dataclass(frozen=True)
class Group:
    """The rows that read one kind of weights. yardstick: the row that they are compared with, a file's llama.cpp where
    it was measured."""

    reads: str
    entries: Sequence[dict]
    yardstick: str


def groups(trials: Sequence[Trial], table: Sequence[dict]) -> list[Group]:
    """The rows by what they read, float32 first, llama.cpp above those that are compared with it."""
    by_kind = summary.grouped(table, lambda e: weights(trials, e["name"]))
    file = RIVAL if summary.warm(trials, RIVAL) else BASELINE
    return [
        Group(
            reads,
            sorted(entries, key=lambda e: e["name"] != RIVAL),
            BASELINE if reads == FLOAT32 else file,
        )
        for reads, entries in sorted(by_kind.items(), key=lambda kind: kind[0] != FLOAT32)
    ]


def over(ratio: Ratio, name: str) -> str:
    """`3.66 [3.58, 3.73] × eager`: a subject's rate over that of another."""
    return f"{ratio.value:.2f}{within(ratio)} × {name}"


@styled
def rates(trials: Sequence[Trial], table: Sequence[dict], published: Sequence[dict] = (), seed: int = 0) -> Figure:
    """Decode tokens/s, a row a subject, by what they read: every answer, median, interval, the row's bandwidth limit
    and its ratio to the group's yardstick; an open diamond is the published median."""
    figure, axes = new(8.6, 0.5 * len(table) + 2.1)
    said, known = claim(trials, seed), groups(trials, table)
    heights = rows.heights(axes, [e["name"] for group in known for e in group.entries])
    heights = {e["name"]: heights[e["name"]] - GAP * at for at, group in enumerate(known) for e in group.entries}
    names = ["\n".join(filter(None, (named_well(name), PLACES.get(name)))) for name in heights]
    axes.set_yticks([*heights.values()], names)
    axes.set_ylim(min(heights.values()) - 0.7, len(heights) + 0.1)  # room for what a group reads, above its first row
    medians = {e["name"]: e["tokens_per_second"]["median"] for e in published if e["tokens_per_second"]["n"]}
    for group in known:
        top = max(heights[e["name"]] for e in group.entries)
        head = dict(size=9, fontweight="bold")
        rows.beside(axes, top + 0.52, group.reads, x=0.015, **head)
        rows.beside(axes, top + 0.52, "tokens/s", x=RATE, ha="right", **head)
        rows.beside(axes, top + 0.52, f"× {named_well(group.yardstick)} [95%]", x=RATIO, **head)
        if top < max(heights.values()):
            axes.axhline(top + 0.52 + GAP, color=GREY, linewidth=0.8)
        limits = []
        for entry in group.entries:
            name, rate = entry["name"], entry["tokens_per_second"]
            if name in medians:
                hollow = dict(markerfacecolor="none", color=colour(name))
                axes.plot(medians[name], heights[name], "D", markersize=8, zorder=5, **hollow)
            if not rate["n"]:
                continue
            rows.subject(axes, name, [t.tg for t in summary.warm(trials, name)], rate, heights[name], "", seed)
            rows.beside(
                axes, heights[name], f"{rate['median']:{'.1f' if rate['median'] < 100 else '.0f'}}", x=RATE, ha="right"
            )
            rows.beside(axes, heights[name], "\n".join(ratios(trials, name, group.yardstick, said, seed)), x=RATIO)
            if any(t.bandwidth_gbps and t.bytes_per_token for t in trials if t.subject == name):
                limits.append(summary.limit(trials, name))
                rows.tick(axes, limits[-1], heights[name])
        if limits:
            at = dict(ha="right", va="center", color=LIMIT_COLOUR, fontsize=9, textcoords="offset points")
            axes.annotate("bandwidth limit", (limits[0], top + 0.52), (4, 0), **at)
    axes.set_xscale("log")
    labels.readable(axes.xaxis)
    diamond = "; diamond: the published median" if published else ""
    counts = sorted({e["tokens_per_second"]["n"] for e in table} - {0}) or [0]
    n = f"n {'=' if len(counts) == 1 else '≥'} {counts[0]} per row"
    known = [e["tokens_per_second"] for e in table if e["tokens_per_second"]["n"]]
    band = "; band: 95% interval" * any(rate["high"] - rate["low"] > SEEN * rate["median"] for rate in known)
    marks = f"point: one answer, {n}; bar: median{band}{diamond}; ratios: means of pairs"
    axes.set_xlabel(f"decode rate, tokens/s, log scale\n({marks})")
    headline(figure, said)
    return figure


def ratios(trials: Sequence[Trial], name: str, yardstick: str, said: Claim, seed: int) -> list[str]:
    """What stands at the end of a row: its ratio to the yardstick, and what the title says of it."""
    further = [over(c.ratio, c.baseline) for c in said.evidence if c.subject == name and c.ratio.n]
    if name == yardstick:
        return ["1", *further]
    ratio = compared(trials, name, yardstick, seed).ratio
    return [f"{ratio.value:.2f}{within(ratio)}"] * bool(ratio.n) + further
