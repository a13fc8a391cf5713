"""What the headline says: a sentence and its detail, and a figure of this machine's answers with the published medians
beside them."""

from __future__ import annotations

from collections.abc import Sequence

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
SEEN = 0.2  # of the median: a narrower interval is hidden by the median's bar
UNJITTED, JITTED, FUSED, RIVAL = "eager", "loop", "loop+fused", "llamacpp"
PLACES = {  # where jit is, below the name
    "eager": "no jit",
    "ops": "jit: each matmul, norm, …",
    "layer": "jit: each layer",
    "split": "jit: model and sampler",
    "step": "jit: one token",
    "step" + AGAIN: "once more (A/A control)",
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


def below(trials: Sequence[Trial], name: str) -> str:
    """What stands under a row's name: where jit is, and the file that it reads."""
    reads = weights(trials, name)
    return ", ".join(filter(None, [PLACES.get(name), reads * (reads != FLOAT32)]))


def weights(trials: Sequence[Trial], name: str) -> str:
    """`float32 weights`, or the file that the kernels and llama.cpp read."""
    file = next((t.dtype for t in summary.warm(trials, RIVAL)), "quantised")
    kinds = {standings.weights(t) for t in summary.warm(trials, name)}
    return f"{file} file" if kinds - {"float32"} else FLOAT32


def over(ratio: Ratio, name: str) -> str:
    """`3.66x eager [3.58, 3.73]`: a subject's rate over that of another."""
    return f"{ratio.value:.2f}x {name}{within(ratio)}"


@styled
def rates(trials: Sequence[Trial], table: Sequence[dict], published: Sequence[dict] = (), seed: int = 0) -> Figure:
    """Decode tokens/s, a row a subject: every answer, median, interval and the row's bandwidth limit; an open diamond
    is the published median."""
    figure, axes = new(8.6, 0.5 * len(table) + 1.7)
    said = claim(trials, seed)
    further = [c for c in (*said.evidence, compared(trials, FUSED, RIVAL, seed)) if c.ratio.n]
    heights = rows.heights(axes, [e["name"] for e in table])
    names = ["\n".join(filter(None, (named_well(name), below(trials, name)))) for name in heights]
    axes.set_yticks([*heights.values()], names)
    limits = {}
    medians = {e["name"]: e["tokens_per_second"]["median"] for e in published if e["tokens_per_second"]["n"]}
    for entry in table:
        name, rate = entry["name"], entry["tokens_per_second"]
        if name in medians:
            hollow = dict(markerfacecolor="none", color=colour(name))
            axes.plot(medians[name], heights[name], "D", markersize=8, zorder=5, **hollow)
        if rate["n"]:
            paired, told = compared(trials, name, BASELINE, seed), any(c.baseline == name for c in further)
            own = [c for c in further if c.subject == name]
            own = own or [paired] * bool(paired.ratio.n and name != BASELINE and not (told and name == RIVAL))
            ratios = ["baseline"] * (name == BASELINE) + [over(c.ratio, named_well(c.baseline)) for c in own]
            words = "\n".join([" · ".join([f"{rate['median']:.1f} tok/s", *ratios[:1]]), *ratios[1:]])
            if any(t.bandwidth_gbps and t.bytes_per_token for t in trials if t.subject == name):
                limit = summary.limit(trials, name)
                rows.tick(axes, limit, heights[name])
                limits.setdefault(weights(trials, name), (limit, heights[name]))
            rows.subject(axes, name, [t.tg for t in summary.warm(trials, name)], rate, heights[name], words, seed)
    for read, (limit, height) in limits.items():  # above the first row of its kind; equal kinds lie together
        at = dict(ha="right", va="bottom", color=LIMIT_COLOUR, fontsize=9, textcoords="offset points")
        axes.annotate(f"bandwidth limit, {read.removesuffix(' weights')}", (limit, height + 0.3), (4, 2), **at)
        if height < max(heights.values()):
            axes.axhline(height + 0.63, color=GREY, linewidth=0.8)  # between kinds of weights
    axes.set_xscale("log")
    labels.readable(axes.xaxis)
    diamond = "; diamond: the published median" if published else ""
    counts = sorted({e["tokens_per_second"]["n"] for e in table} - {0}) or [0]
    n = f"n {'=' if len(counts) == 1 else '≥'} {counts[0]} per row"
    known = [e["tokens_per_second"] for e in table if e["tokens_per_second"]["n"]]
    band = "; band: 95% interval" * any(rate["high"] - rate["low"] > SEEN * rate["median"] for rate in known)
    marks = f"point: one answer, {n}; bar: median{band}{diamond}; ratios: means of pairs [95%]"
    axes.set_xlabel(f"decode rate, tokens/s, log scale\n({marks})")
    headline(figure, said)
    return figure
