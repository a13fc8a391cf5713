"""Charts of warm first tokens beyond the median: every request at one length, and percentiles by length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench import statistics
from llama_lab.bench.record import Trial
from llama_lab.experiments.time_to_first_token import table
from llama_lab.experiments.time_to_first_token.chart import look, milli, of_time
from llama_lab.figures import notes, rows
from llama_lab.figures.style import headline, new, styled


@styled
def ttft_distribution(trials: Sequence[Trial], n: int, seed: int = 0) -> Figure:
    """Every warm first token at one length, a row a subject, with median and, where the sample can hold it, P99."""
    entries = sorted((e for e in table.table(trials, seed) if e["tokens"] == n and e["n"]), key=lambda e: e["p50"])
    if not entries:
        return notes.nothing(f"There is no valid warm request at {n} tokens.")
    figure, axes = new(10, 0.4 * len(entries) + 2)
    heights, spread = rows.heights(axes, [e["subject"] for e in entries]), np.random.default_rng(seed)
    for e in entries:
        height, values = heights[e["subject"]], table.milliseconds(table.warm(trials, e["subject"], n))
        shade, span = look(trials, e["subject"])[0], (e["low"], e["p50"], e["high"])
        rows.points(axes, values, height, shade, spread, 0.2, s=14, zorder=1)
        rows.interval(axes, span, height, mark=20, edge=2, alpha=0.3, zorder=(2, 2))
        words = f"P50 {milli(e['p50'])}, n = {e['n']}"
        if e["p99"] is not None:
            hollow = dict(color="black", markersize=6, markerfacecolor="none", markeredgewidth=1.5)
            axes.plot(e["p99"], height, "D", **hollow)
            words += f", P99 {milli(e['p99'])}"
        rows.beside(axes, height, words)
    of_time(axes)
    diamond = "diamond: P99" if any(e["p99"] is not None for e in entries) else ""
    short = f"no P99 below n = {statistics.enough(99):,}" if any(e["p99"] is None for e in entries) else ""
    last = "; ".join(filter(None, (diamond, short)))
    axes.set_xlabel(f"time to first token, ms (log scale; point: a request; bar: P50 with its 95 % interval;\n{last})")
    best = entries[0]
    mine = next((e for e in entries if e["subject"] in table.placements(trials)), best)
    words = f"At {n} prompt tokens {best['subject']} is soonest, {milli(best['p50'])}"
    if mine is not best:
        words += f"; of the placements {mine['subject']}, {milli(mine['p50'])}"
    headline(figure, words)
    return figure


@styled
def ttft_tails(entries: Sequence[dict], trials: Sequence[Trial]) -> Figure:
    """Mean, P50 and, where the sample can hold them, P95 and P99 against prompt length, a panel a subject; below each
    length stands how many requests there were. entries: `table.tails`."""
    names = list(dict.fromkeys(e["subject"] for e in entries))
    if not names:
        return notes.nothing(f"No subject was asked {statistics.enough(95):,} times at any length, so there is no P95.")
    figure, panels = new(max(7.0, 3.5 * len(names) + 0.4), 5.4, columns=len(names), sharey=True, squeeze=False)
    for axes, name in zip(panels[0], names, strict=True):
        here = sorted((e for e in entries if e["subject"] == name), key=lambda e: e["tokens"])
        shade = look(trials, name)[0]
        x = [e["tokens"] for e in here]
        found = {key: [np.nan if e[key] is None else e[key] for e in here] for key in ("p50", "p95", "p99")}
        axes.fill_between(x, found["p50"], found["p95"], color=shade, alpha=0.15, linewidth=0)
        for key, line in (("p50", "-"), ("p95", "--_"), ("p99", ":D")):
            if not np.isnan(found[key]).all():
                axes.plot(x, found[key], line, color=shade, linewidth=2, markersize=6, label=key.upper())
        axes.plot(x, [e["mean"] for e in here], "x", color="black", markersize=6, label="mean")
        axes.set_title(name, fontsize=10.5)
        axes.set(xscale="log", yscale="log")
        axes.minorticks_off()
        named = apart(x)
        labels = [f"{e['tokens']}  (n = {e['n']:,})" if e["tokens"] in named else "" for e in here]
        axes.set_xticks(x, labels, rotation=90, fontsize=8.5)
        notes.one_two_five(axes.yaxis, minor=False)
    few = min(e["n"] for e in entries)
    short = "; ".join(f"no P{p} below n = {least:,}" for p in (95, 99) if few < (least := statistics.enough(p)))
    figure.supxlabel(f"tokens of the prompt (log scale), and requests there (n)\n{short}".strip(), fontsize=9.5)
    panels[0][0].set_ylabel("time to first token, ms (log scale)")
    panels[0][0].legend(loc="upper left", fontsize=9.5)
    over = [e[key] / e["p50"] for e in entries for key in ("p95",) if e[key] is not None]
    ends = " to ".join(dict.fromkeys(f"{ratio:.1f}" for ratio in (min(over), max(over))))
    headline(figure, f"One first token in twenty takes {ends} times the median or longer")
    return figure


def apart(values: Sequence[float], factor: float = 1.3) -> list[float]:
    """Of ascending values those that are at least so far from the last one kept that their labels do not touch."""
    kept = []
    for value in values:
        if not kept or value >= factor * kept[-1]:
            kept.append(value)
    return kept
