"""Charts of measuring itself: published claims timed again, and the statistics against a simulation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench.published import standing
from llama_lab.bench.wording import interval
from llama_lab.experiments.honest_measurement import finding
from llama_lab.figures import notes, rows
from llama_lab.figures.marks import interval_words
from llama_lab.figures.style import GREY, OTHERS, colour, footnote, headline, new, styled

WITH, WITHOUT, BAD = colour("step"), OTHERS[1], OTHERS[5]


@styled
def speed_ups(entries: Sequence[dict], limit: float) -> Figure:
    """Tokens/s of whole answers with and without a cache under three ways of warming up; published and measured ratios
    beside.

    entries: of `measure.speed_ups`. limit: tokens/s that the memory bandwidth allows.
    """
    figure, axes = new(10, 3.8)
    heights = rows.heights(axes, [e["label"] for e in entries])
    where = standing("kv-cache", "speed-up, short warm-up", "speed-up, long warm-up")
    for e in entries:
        height = heights[e["label"]]
        for name, shade, marker, up in (("uncached", WITHOUT, "s", -0.12), ("cached", WITH, "o", 0.12)):
            rows.points(axes, e[name], height + up, shade, spread=0, s=34, marker=marker, alpha=0.7, zorder=3)
        middles = [np.median(e["uncached"]), np.median(e["cached"])]
        axes.plot(middles, [height] * 2, color="#999999", linewidth=1.2, zorder=1)
        known = f"published {e['published']:.2f}x ({where})\n" if e["published"] else "never published\n"
        words = known + "here " + interval_words(e["ratio"])
        rows.beside(axes, height, words, 9.5, x=1.02, color="black" if e["guard"] else BAD)
        guard = "this protocol: counts" if e["guard"] else "as published: compilations inside"
        axes.text(0.005, height - 0.36, guard, fontsize=8.5, color=GREY, transform=axes.get_yaxis_transform())
    notes.bandwidth_limit(axes, limit)
    axes.set_xscale("log")
    axes.set_xlim(right=1.15 * max(limit, *(rate for e in entries for rate in e["cached"])))
    notes.plain(axes.xaxis)
    axes.set_xlabel("tokens/s over a whole answer of 15 tokens, log scale (point: one answer)")
    axes.scatter([], [], color=WITH, marker="o", label="growing KV cache, jitted")
    axes.scatter([], [], color=WITHOUT, marker="s", label="no cache, jitted")
    figure.legend(loc="outside lower center", ncols=2, fontsize=9.5)
    headline(figure, finding.claim(entries))
    return figure


@styled
def first_tokens(first: dict, limit_ms: float) -> Figure:
    """Times to first token of a cold loop and a warm one, with the statistics that were published side by side.

    first: of `measure.first_tokens`. limit_ms: what the machine's arithmetic allows for this prompt.
    """
    cold, warm, middle = first["cold"], first["warm"], first["warm_median"]
    figure, (left, right) = new(10.5, 4.2, columns=2, width_ratios=(1, 2.4))
    published = [first["published_mean"], first["published_p99"]]
    left.bar([0, 1], published, color=[BAD, WITH], width=0.6)
    left.set_xticks([0, 1], ["mean of\n5, one cold", "P99 of\n100 warm"])
    for x, value in enumerate(published):
        left.text(x, value, f"{value:.2f}", ha="center", va="bottom", fontsize=10)
    left.set_ylabel("time to first token, ms")
    left.grid(axis="x", visible=False)
    left.set_title(f"as published ({standing('ttft', 'mean, JIT-only', 'P99, JIT-only')})", pad=18)
    top, bottom = rows.heights(right, ["5, the first cold", f"{len(warm)} warm requests"]).values()
    spread = np.random.default_rng(0)
    for times, shade, height in ((cold, BAD, top), (warm, WITH, bottom)):
        rows.points(right, times, height, shade, spread, 0.2, s=18, alpha=0.5, zorder=1)
    for value, height, words in ((first["cold_mean"], top, "mean"), (first["naive_p99"], bottom, "P99")):
        right.plot([value] * 2, [height - 0.3, height + 0.3], color=BAD, linewidth=2.2)
        words = f"published way: {words} {value:.0f} ms"
        right.text(value, height + 0.33, words, color=BAD, fontsize=9, ha="center", va="bottom")
    right.plot([middle.median] * 2, [bottom - 0.3, bottom + 0.3], color="black", linewidth=2.2)
    p99 = f"p99 {first['p99']:.0f} ms" if first["p99"] else f"no p99: {first['note']}"
    words = f"this protocol: median {middle.median:.0f} {interval(middle, '.0f')} ms, n = {middle.n}\n{p99}"
    right.text(middle.median, bottom - 0.34, words, fontsize=9, ha="left", va="top")
    right.set_ylim(bottom=bottom - 0.85)
    notes.limit(right, limit_ms, f" arithmetic limit {limit_ms:.0f} ms", "left")
    right.set_xscale("log")
    notes.plain(right.xaxis)
    right.xaxis.set_minor_formatter("")
    right.set_xlim(min(limit_ms, *warm) / 1.4, max(*cold, *warm) * 1.4)
    right.set_xlabel("time to first token, ms, log scale (point: one request)")
    right.set_title("measured here", pad=18)
    over = f"{first['cold_mean'] / first['naive_p99']:.1f} times the 99th percentile of {len(warm):,} warm ones"
    headline(figure, f"The mean of {len(cold)} requests, the first cold, is {over}")
    return figure


@styled
def two_ways(rounds: Sequence[dict], pairs: int, published: str) -> Figure:
    """One program under two names: the interval of each round, timed one after the other and interleaved.

    published: what was claimed on the strength of the first way.
    """
    figure, both = new(10, 0.22 * len(rounds) + 2.6, columns=2, sharex=True, sharey=True)
    titles = {
        "sequential": "as published: all of A, then all of B",
        "interleaved": "this protocol: pairs in random order",
    }
    apart = {way: sum(ratios[way].excludes_one for ratios in rounds) for way in titles}
    for axes, (way, title) in zip(both, titles.items(), strict=True):
        for i, ratio in enumerate(ratios[way] for ratios in rounds):
            shade, form = (BAD, "x") if ratio.excludes_one else (WITH, "o")
            axes.plot([ratio.low, ratio.high], [i] * 2, color=shade, linewidth=3, alpha=0.6, solid_capstyle="butt")
            axes.plot(ratio.value, i, form, color=shade, markersize=6, markeredgewidth=2)
        axes.axvline(1, color="black", linewidth=1)
        axes.set_title(title)
        count = f"{apart[way]} of {len(rounds)} rounds (x) call one program two"
        axes.set_xlabel(f"tokens/s of B over A, 95 % interval ({pairs} answers each)\n{count}")
        axes.set_yticks(range(len(rounds)), [str(i + 1) for i in range(len(rounds))])
        axes.grid(axis="y", visible=False)
    both[0].set_ylabel("round (a process each)")
    words = f"Timed against itself a program differs in {apart['sequential']} of {len(rounds)} rounds"
    headline(figure, f"{words} one after the other, in {apart['interleaved']} interleaved")
    footnote(figure, f"Published one after the other: {published}. Here A and B are one program.")
    both[0].invert_yaxis()
    return figure


@styled
def validation(table: Sequence[dict], thresholds: dict[str, float]) -> Figure:
    """Simulated measurements with a known truth: how often each way is right. table: of `simulation.table`."""
    scenarios = list(dict.fromkeys(r["scenario"] for r in table))
    looks = {"ours": (0.13, "o", WITH), "naive": (-0.13, "X", BAD)}
    figure, panels = new(11, 0.4 * len(scenarios) + 2.3, columns=3, sharey=True)
    heights = rows.heights(panels[0], scenarios)
    for axes, (key, title, bound) in zip(
        panels,
        (
            ("coverage", "interval holds the truth\n(more is better)", "at least"),
            ("aa_false_positive_rate", "equal called different\n(less is better)", "at most"),
            ("power", "a 3 % effect is found\n(more is better)", "at least"),
        ),
        strict=True,
    ):
        axes.grid(axis="y", visible=False)
        for r in table:
            up, form, shade = looks[r["protocol"]]
            share, height = r[key], heights[r["scenario"]] + up
            error = 1.96 * np.sqrt(max(share * (1 - share), 0) / r["runs"])
            span = [100 * (share - error), 100 * (share + error)]
            axes.plot(span, [height] * 2, color=shade, linewidth=2, alpha=0.5)
            axes.plot(100 * share, height, form, color=shade, markersize=7)
        at = 100 * thresholds[key]
        axes.axvline(at, color="black", linestyle=":", linewidth=1.5)
        axes.set(xlim=(-3, 103), title=title, xlabel=f"% of simulated runs\n(dotted, required: {bound} {at:.0f} %)")
    panels[0].plot([], [], "o", color=WITH, label="this protocol: interleaved blocks, pairs, bootstrap of processes")
    panels[0].plot([], [], "X", color=BAD, label="one after the other, unpaired (Welch)")
    figure.legend(loc="outside lower center", ncols=1, fontsize=9.5)
    held = {r["protocol"]: f"{r['coverage']:.0%}" for r in table if r["scenario"] == scenarios[0]}
    words = f"This protocol's intervals hold the truth in {held['ours']} of simulated runs"
    headline(figure, f"{words}, those of one after the other in {held['naive']}")
    return figure
