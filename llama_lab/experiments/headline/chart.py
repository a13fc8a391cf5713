"""What the headline says: a sentence and its detail, and a figure of this machine's answers with the published medians
beside them."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from llama_lab.bench import AGAIN, standings, summary
from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import interval, listed, named_well, within
from llama_lab.experiments.headline.measure import BASELINE
from llama_lab.figures import labels, rows
from llama_lab.figures.style import GREY, LIMIT_COLOUR, colour, headline, new, styled

FLOAT32 = "float32 weights"
GAP = 0.35  # between groups of rows, in rows
RATE, SHARE, BRACKET, OUTER = 48, 100, 112, 232  # places at the right of the axes, in points
SEEN = 0.2  # of the median: a narrower interval is hidden by the median's bar
UNJITTED, JITTED, FUSED, RIVAL = "eager", "loop", "loop+fused", "llamacpp"
PLACES = {  # where jit is, below the name
    "eager": "no jit",
    "ops": "jit: attend, ffn, norm, …",
    "layer": "jit: each layer",
    "split": "jit: model and sampler",
    "step": "jit: one token",
    "step" + AGAIN: "noise check (A/A)",
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
    said = "Jitting the step makes it {gain} times as fast"
    return (
        stated(said + "; kernels on quantised weights make the loop {more} times as fast.", gain=gain, more=more)
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


def groups(trials: Sequence[Trial], table: Sequence[dict]) -> dict[str, list[dict]]:
    """The rows by what they read, float32 first, llama.cpp above those that read the same file."""
    by_kind = summary.grouped(sorted(table, key=lambda e: e["name"] != RIVAL), lambda e: weights(trials, e["name"]))
    return dict(sorted(by_kind.items(), key=lambda kind: kind[0] != FLOAT32))


@styled
def rates(trials: Sequence[Trial], table: Sequence[dict], published: Sequence[dict] = (), seed: int = 0) -> Figure:
    """Decode tokens/s, a row a subject, by what they read: every answer, median, interval, the row's bandwidth limit,
    and its share of that; an open diamond is the published median. Brackets join the rows that the title compares, and
    the kernel with llama.cpp."""
    figure, axes = new(9.8, 0.5 * len(table) + 2.1)
    said, known = claim(trials, seed), groups(trials, table)
    heights = rows.heights(axes, [e["name"] for entries in known.values() for e in entries])
    heights = {e["name"]: heights[e["name"]] - GAP * at for at, group in enumerate(known.values()) for e in group}
    names = ["\n".join(filter(None, (named_well(name), PLACES.get(name)))) for name in heights]
    axes.set_yticks([*heights.values()], names)
    axes.set_ylim(min(heights.values()) - 0.7, len(heights) + 0.1)  # room for what a group reads, above its first row
    medians = {e["name"]: e["tokens_per_second"]["median"] for e in published if e["tokens_per_second"]["n"]}
    for name in medians.keys() & heights.keys():
        hollow = dict(markerfacecolor="none", color=colour(name))
        axes.plot(medians[name], heights[name], "D", markersize=8, zorder=5, **hollow)
    for reads, entries in known.items():
        group_of_rows(axes, trials, reads, entries, heights, seed)
    joined = [*said.evidence, compared(trials, FUSED, RIVAL, seed)]
    for c in (c for c in joined if c.ratio.n):
        words = f"{c.subject}\nover {named_well(c.baseline)}:\n{c.ratio.value:.2f}{within(c.ratio)}"
        outer = c.subject == FUSED and c.baseline != RIVAL  # around the bracket from llama.cpp
        bracket(axes, heights[c.subject], heights[c.baseline], words, OUTER if outer else BRACKET)
    axes.set_xscale("log")
    axes.set_xlim(right=1.5 * axes.get_xlim()[1])  # room for the limit's name before the columns
    labels.readable(axes.xaxis)
    diamond = "; diamond: the published median" if published else ""
    counts = sorted({e["tokens_per_second"]["n"] for e in table} - {0}) or [0]
    n = f"n {'=' if len(counts) == 1 else '≥'} {counts[0]} per row"
    measured = [e["tokens_per_second"] for e in table if e["tokens_per_second"]["n"]]
    band = "; band: 95% interval" * any(rate["high"] - rate["low"] > SEEN * rate["median"] for rate in measured)
    marks = f"point: one answer, {n}; bar: median{band}{diamond}"
    axes.set_xlabel(f"decode rate, tokens/s, log scale\n({marks})")
    right(axes, axes.get_ylim()[0], "ratios: geometric\nmeans of pairs\n[95% interval]", BRACKET + 10)
    headline(figure, said)
    return figure


def group_of_rows(axes, trials: Sequence[Trial], reads: str, entries: Sequence[dict], heights, seed: int) -> None:
    """The rows of one kind of weights, and over them what they read and what the columns at the right are. heights: of
    rows by name."""
    head, top = dict(fontweight="bold"), max(heights[e["name"]] for e in entries)
    rows.beside(axes, top + 0.52, reads, x=0.015, fontweight="bold")
    right(axes, top + 0.52, "tokens/s", RATE, ha="right", **head)
    if top < max(heights.values()):
        axes.axhline(top + 0.52 + GAP, color=GREY, linewidth=0.8)
    limits = []
    for name, rate in ((e["name"], e["tokens_per_second"]) for e in entries if e["tokens_per_second"]["n"]):
        height = heights[name]
        rows.subject(axes, name, [t.tg for t in summary.warm(trials, name)], rate, height, "", seed)
        digits = ".1f" if rate["median"] < 100 else ".0f"
        right(axes, height, f"{rate['median']:{digits}}", RATE, ha="right")
        if any(t.bandwidth_gbps and t.bytes_per_token for t in trials if t.subject == name):
            limits.append(summary.limit(trials, name))
            rows.tick(axes, limits[-1], height)
            right(axes, height, f"{rate['median'] / limits[-1]:.0%}", SHARE, ha="right")
    if limits:
        side = "left" if top == max(heights.values()) else "right"  # where the names of what is read leave room
        at = dict(ha=side, va="center", color=LIMIT_COLOUR, fontsize=9, textcoords="offset points")
        axes.annotate("bandwidth limit", (limits[0], top + 0.52), (-4 if side == "left" else 4, 0), **at)
        right(axes, top + 0.52, "of limit", SHARE, ha="right", **head)


def right(axes, height: float, words: str, points: float, **style) -> None:
    """Words at a row's height, so many points right of the axes."""
    at = dict(xycoords=axes.get_yaxis_transform(), textcoords="offset points", va="center", annotation_clip=False)
    axes.annotate(words, (1, height), (points, 0), **at, **dict(fontsize=9) | style)


def bracket(axes, one: float, other: float, words: str, points: float) -> None:
    """Two rows joined at the right, with words. points: right of the axes."""
    moved = ScaledTranslation(points / 72, 0, axes.figure.dpi_scale_trans)
    style = dict(color="black", linewidth=1, clip_on=False, transform=axes.get_yaxis_transform() + moved)
    axes.plot([1, 1.012, 1.012, 1], [one, one, other, other], **style)
    right(axes, (one + other) / 2, words, points + 10, fontweight="bold")
