"""The headline as a figure: this machine's answers, and beside them the published medians."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from llama_lab.bench import summary
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import times
from llama_lab.experiments.headline import finding
from llama_lab.figures.labels import readable
from llama_lab.figures.style import colour, headline, interval_bar, new, rows, scatter_row, styled


@styled
def rates(trials: Sequence[Trial], table: Sequence[dict], published: Sequence[dict] = (), seed: int = 0) -> Figure:
    """Decode tokens/s, a row a subject: every answer, median and interval; an open diamond is the published median."""
    figure, axes = new(9.5, 0.5 * len(table) + 1.5)
    heights, theirs = rows(axes, [e["name"] for e in table]), {e["name"]: e["tokens_per_second"] for e in published}
    for entry in table:
        name, rate, ratio = entry["name"], entry["tokens_per_second"], entry["ratio_to_baseline"]
        height, there = heights[name], theirs.get(name)
        if there and there["n"]:
            axes.plot(there["median"], height, "D", markersize=8, markerfacecolor="none", color=colour(name), zorder=5)
        if not rate["n"]:
            continue
        scatter_row(axes, [t.tg for t in summary.warm(trials, name)], height, name, seed)
        interval_bar(axes, rate["low"], rate["median"], rate["high"], height, 18)
        said = "baseline" if ratio["verdict"] == "baseline" else times(ratio)
        words = f"{rate['median']:.1f} tok/s · {said}, n = {rate['n']}"
        axes.text(1.01, height, words, va="center", fontsize=9, transform=axes.get_yaxis_transform())
    axes.set_xscale("log")
    readable(axes.xaxis)
    diamond = "; diamond: the published median" if theirs else ""
    axes.set_xlabel(f"decode rate, tokens/s, log scale\n(point: one answer; bar: median; band: 95 % interval{diamond})")
    headline(figure, finding.claim(trials, seed))
    return figure
