"""The headline as a figure: this machine's answers, and beside them the published medians."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from llama_lab.bench import summary
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import times
from llama_lab.experiments.headline import finding
from llama_lab.figures import labels, rows
from llama_lab.figures.style import colour, headline, new, styled


@styled
def rates(trials: Sequence[Trial], table: Sequence[dict], published: Sequence[dict] = (), seed: int = 0) -> Figure:
    """Decode tokens/s, a row a subject: every answer, median and interval; an open diamond is the published median."""
    figure, axes = new(9.5, 0.5 * len(table) + 1.5)
    heights = rows.heights(axes, [e["name"] for e in table])
    medians = {e["name"]: e["tokens_per_second"]["median"] for e in published if e["tokens_per_second"]["n"]}
    for entry in table:
        name, rate, ratio = entry["name"], entry["tokens_per_second"], entry["ratio_to_baseline"]
        if name in medians:
            hollow = dict(markerfacecolor="none", color=colour(name))
            axes.plot(medians[name], heights[name], "D", markersize=8, zorder=5, **hollow)
        if rate["n"]:
            over = "baseline" if ratio["verdict"] == summary.BASELINE else times(ratio)
            words = f"{rate['median']:.1f} tok/s · {over}, n = {rate['n']}"
            rows.subject(axes, name, [t.tg for t in summary.warm(trials, name)], rate, heights[name], words, seed)
    axes.set_xscale("log")
    labels.readable(axes.xaxis)
    diamond = "; diamond: the published median" if published else ""
    axes.set_xlabel(f"decode rate, tokens/s, log scale\n(point: one answer; bar: median; band: 95 % interval{diamond})")
    headline(figure, finding.claim(trials, seed))
    return figure
