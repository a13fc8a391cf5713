"""What the headline says: a sentence and its detail, and a figure of this machine's answers with the published medians
beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from llama_lab.bench import AGAIN, standings, summary
from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import interval, listed, named_well, within
from llama_lab.experiments.headline.measure import BASELINE
from llama_lab.figures import labels, rows
from llama_lab.figures.style import GREY, LIMIT_COLOUR, colour, headline, new, styled

FLOAT32 = "float32 weights"
GAP = 0.35  # between groups of rows, in rows
RATE, SHARE, RATIO, BRACKET = 1.11, 1.24, 1.28, 1.62  # places at the right, as shares of the axes' width
SEEN = 0.2  # of the median: a narrower interval is hidden by the median's bar
UNJITTED, JITTED, FUSED, RIVAL = "eager", "loop", "loop+fused", "llamacpp"
PLACES = {  # where jit is, below the name
    "eager": "no jit",
    "ops": "jit: each matmul, norm, …",
    "layer": "jit: each layer",
    "split": "jit: model and sampler",
    "step": "jit: one token",
    "step" + AGAIN: "the same again, to show the noise",
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
    said = "A jitted step is {gain} times as fast as no jit"
    return (
        stated(said + "; the loop gains {more}-fold from kernels on quantised weights.", gain=gain, more=more)
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


@styled
def rates(trials: Sequence[Trial], table: Sequence[dict], published: Sequence[dict] = (), seed: int = 0) -> Figure:
    """Decode tokens/s, a row a subject, by what they read: every answer, median, interval, the row's bandwidth limit,
    its share of that and its ratio to the group's yardstick; an open diamond is the published median. Brackets join the
    rows that the title compares."""
    figure, axes = new(9.2, 0.5 * len(table) + 2.1)
    said, known = claim(trials, seed), groups(trials, table)
    heights = rows.heights(axes, [e["name"] for group in known for e in group.entries])
    heights = {e["name"]: heights[e["name"]] - GAP * at for at, group in enumerate(known) for e in group.entries}
    names = ["\n".join(filter(None, (named_well(name), PLACES.get(name)))) for name in heights]
    axes.set_yticks([*heights.values()], names)
    axes.set_ylim(min(heights.values()) - 0.7, len(heights) + 0.1)  # room for what a group reads, above its first row
    medians = {e["name"]: e["tokens_per_second"]["median"] for e in published if e["tokens_per_second"]["n"]}
    for name in medians.keys() & heights.keys():
        hollow = dict(markerfacecolor="none", color=colour(name))
        axes.plot(medians[name], heights[name], "D", markersize=8, zorder=5, **hollow)
    for group in known:
        group_of_rows(axes, trials, group, heights, seed)
    for c in said.evidence:
        if c.ratio.n:
            words = f"{c.subject} over {c.baseline}:\n{c.ratio.value:.2f}{within(c.ratio)}"
            bracket(axes, heights[c.subject], heights[c.baseline], words)
    axes.set_xscale("log")
    axes.set_xlim(right=1.5 * axes.get_xlim()[1])  # room for the limit's name before the columns
    labels.readable(axes.xaxis)
    diamond = "; diamond: the published median" if published else ""
    counts = sorted({e["tokens_per_second"]["n"] for e in table} - {0}) or [0]
    n = f"n {'=' if len(counts) == 1 else '≥'} {counts[0]} per row"
    measured = [e["tokens_per_second"] for e in table if e["tokens_per_second"]["n"]]
    band = "; band: 95% interval" * any(rate["high"] - rate["low"] > SEEN * rate["median"] for rate in measured)
    marks = f"point: one answer, {n}; bar: median{band}{diamond}; ratios: means of pairs [95% interval]"
    axes.set_xlabel(f"decode rate, tokens/s, log scale\n({marks})")
    headline(figure, said)
    return figure


def group_of_rows(axes, trials: Sequence[Trial], group: Group, heights: dict[str, float], seed: int) -> None:
    """The rows of one kind of weights, and over them what they read and what the columns at the right are."""
    head, top = dict(size=9, fontweight="bold"), max(heights[e["name"]] for e in group.entries)
    rows.beside(axes, top + 0.52, group.reads, x=0.015, **head)
    rows.beside(axes, top + 0.52, "tokens/s", x=RATE, ha="right", **head)
    rows.beside(axes, top + 0.52, f"× {named_well(group.yardstick)}", x=RATIO, **head)
    if top < max(heights.values()):
        axes.axhline(top + 0.52 + GAP, color=GREY, linewidth=0.8)
    limits = []
    for entry in group.entries:
        name, rate = entry["name"], entry["tokens_per_second"]
        if not rate["n"]:
            continue
        height, ratio = heights[name], compared(trials, name, group.yardstick, seed).ratio
        rows.subject(axes, name, [t.tg for t in summary.warm(trials, name)], rate, height, "", seed)
        digits = ".1f" if rate["median"] < 100 else ".0f"
        rows.beside(axes, height, f"{rate['median']:{digits}}", x=RATE, ha="right")
        words = f"{ratio.value:.2f}{within(ratio)}" if ratio.n else ""
        rows.beside(axes, height, "1" if name == group.yardstick else words, x=RATIO)
        if any(t.bandwidth_gbps and t.bytes_per_token for t in trials if t.subject == name):
            limits.append(summary.limit(trials, name))
            rows.tick(axes, limits[-1], height)
            rows.beside(axes, height, f"{rate['median'] / limits[-1]:.0%}", x=SHARE, ha="right")
    if limits:
        at = dict(ha="right", va="center", color=LIMIT_COLOUR, fontsize=9, textcoords="offset points")
        axes.annotate("bandwidth limit", (limits[0], top + 0.52), (4, 0), **at)
        rows.beside(axes, top + 0.52, "of limit", x=SHARE, ha="right", **head)


def bracket(axes, one: float, other: float, words: str) -> None:
    """Two rows joined at the right, with words."""
    style = dict(color="black", linewidth=1, clip_on=False, transform=axes.get_yaxis_transform())
    axes.plot([BRACKET, BRACKET + 0.012, BRACKET + 0.012, BRACKET], [one, one, other, other], **style)
    rows.beside(axes, (one + other) / 2, words, x=BRACKET + 0.03, fontweight="bold")
