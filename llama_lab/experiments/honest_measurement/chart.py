"""Charts of measuring itself: published claims timed again, and the statistics against a simulation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench.wording import interval
from llama_lab.experiments.honest_measurement import finding
from llama_lab.figures import notes, rows
from llama_lab.figures.marks import interval_words
from llama_lab.figures.style import GREY, OTHERS, colour, footnote, headline, new, styled

WITH, WITHOUT, BAD = colour("step"), OTHERS[1], OTHERS[5]


@styled
def speed_ups(found: Sequence[dict], limit: float) -> Figure:
    """Tokens/s of whole answers with and without a cache under three ways of warming up; published and measured ratios
    beside.

    found: as `measure.speed_ups` returns it. limit: tokens/s that the memory bandwidth allows.
    """
    figure, axes = new(10, 3.8)
    heights = rows.heights(axes, [f["label"] for f in found])
    for f in found:
        height = heights[f["label"]]
        for name, shade, marker, up in (("uncached", WITHOUT, "s", -0.12), ("cached", WITH, "o", 0.12)):
            rows.points(axes, f[name], height + up, shade, spread=0, s=34, marker=marker, alpha=0.7, zorder=3)
        middles = [np.median(f["uncached"]), np.median(f["cached"])]
        axes.plot(middles, [height] * 2, color="#999999", linewidth=1.2, zorder=1)
        known = f"published {f['published']:.2f}x\n" if f["published"] else "never published\n"
        words = known + "here " + interval_words(f["ratio"])
        rows.beside(axes, height, words, 9.5, x=1.02, color="black" if f["guard"] else BAD)
        guard = "this protocol: counts" if f["guard"] else "as published: compilations inside"
        axes.text(0.005, height - 0.36, guard, fontsize=8.5, color=GREY, transform=axes.get_yaxis_transform())
    notes.bandwidth_limit(axes, limit)
    axes.set_xscale("log")
    axes.set_xlim(right=1.15 * max(limit, *(rate for f in found for rate in f["cached"])))
    notes.plain(axes.xaxis)
    axes.set_xlabel("tokens/s over a whole answer of 15 tokens, log scale (point: one answer)")
    axes.scatter([], [], color=WITH, marker="o", label="growing KV cache, jitted")
    axes.scatter([], [], color=WITHOUT, marker="s", label="no cache, jitted")
    figure.legend(loc="outside lower center", ncols=2, fontsize=9.5)
    headline(figure, finding.claim(found))
    return figure


@styled
def first_tokens(found: dict, limit_ms: float) -> Figure:
    """Times to first token of a cold loop and a warm one, with the statistics that were published side by side.

    found: as `measure.first_tokens` returns it. limit_ms: what the machine's arithmetic allows for this prompt.
    """
    figure, (left, right) = new(10.5, 4.2, columns=2, width_ratios=(1, 2.4))
    left.bar([0, 1], [found["published_mean"], found["published_p99"]], color=[BAD, WITH], width=0.6)
    left.set_xticks([0, 1], ["mean of\n5, one cold", "P99 of\n100 warm"])
    for x, value in enumerate((found["published_mean"], found["published_p99"])):
        left.text(x, value, f"{value:.2f}", ha="center", va="bottom", fontsize=10)
    left.set_ylabel("time to first token, ms")
    left.grid(axis="x", visible=False)
    left.set_title("as published", pad=18)
    heights = rows.heights(right, ["5, the first cold", f"{len(found['warm'])} warm requests"])
    spread = np.random.default_rng(0)
    for name, shade, height in zip(("cold", "warm"), (BAD, WITH), heights.values(), strict=True):
        rows.points(right, found[name], height, shade, spread, 0.2, s=18, alpha=0.5, zorder=1)
    top, bottom = heights.values()
    middle = found["warm_median"]
    marks = ((found["cold_mean"], top, f"published way: mean {found['cold_mean']:.0f} ms", BAD),
             (found["naive_p99"], bottom, f"published way: P99 {found['naive_p99']:.0f} ms", BAD))  # fmt: skip
    for value, height, words, shade in marks:
        right.plot([value] * 2, [height - 0.3, height + 0.3], color=shade, linewidth=2.2)
        right.text(value, height + 0.33, words, color=shade, fontsize=9, ha="center", va="bottom")
    right.plot([middle.median] * 2, [bottom - 0.3, bottom + 0.3], color="black", linewidth=2.2)
    p99 = f"p99 {found['p99']:.0f} ms" if found["p99"] else f"no p99: {found['note']}"
    words = f"this protocol: median {middle.median:.0f} {interval(middle, '.0f')} ms, n = {middle.n}\n{p99}"
    right.text(middle.median, bottom - 0.34, words, fontsize=9, ha="left", va="top")
    right.set_ylim(bottom=bottom - 0.85)
    notes.limit(right, limit_ms, f" arithmetic limit {limit_ms:.0f} ms", "left")
    right.set_xscale("log")
    notes.plain(right.xaxis)
    right.xaxis.set_minor_formatter("")
    right.set_xlim(min(limit_ms, *found["warm"]) / 1.4, max(*found["cold"], *found["warm"]) * 1.4)
    right.set_xlabel("time to first token, ms, log scale (point: one request)")
    right.set_title("measured here", pad=18)
    over = found["cold_mean"] / found["naive_p99"]
    warm = f"the 99th percentile of {len(found['warm']):,} warm ones"
    headline(figure, f"The mean of {len(found['cold'])} requests, the first cold, is {over:.1f} times {warm}")
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
    for axes, (way, title) in zip(both, titles.items(), strict=True):
        apart = 0
        for i, found in enumerate(rounds):
            ratio = found[way]
            differs = ratio.excludes_one
            apart += differs
            shade = BAD if differs else WITH
            axes.plot([ratio.low, ratio.high], [i] * 2, color=shade, linewidth=3, alpha=0.6, solid_capstyle="butt")
            axes.plot(ratio.value, i, "x" if differs else "o", color=shade, markersize=6, markeredgewidth=2)
        axes.axvline(1, color="black", linewidth=1)
        axes.set_title(title)
        axes.set_xlabel(
            f"tokens/s of B over A, 95 % interval ({pairs} answers each)\n"
            f"{apart} of {len(rounds)} rounds (x) call one program two"
        )
        axes.set_yticks(range(len(rounds)), [str(i + 1) for i in range(len(rounds))])
        axes.grid(axis="y", visible=False)
    both[0].set_ylabel("round (a process each)")
    apart = {way: sum(found[way].excludes_one for found in rounds) for way in titles}
    said = f"Timed against itself a program differs in {apart['sequential']} of {len(rounds)} rounds"
    headline(figure, f"{said} one after the other, in {apart['interleaved']} interleaved")
    footnote(figure, f"Published one after the other: {published}. Here A and B are one program.")
    both[0].invert_yaxis()
    return figure


@styled
def validation(table: Sequence[dict], thresholds: dict[str, float]) -> Figure:
    """Simulated measurements with a known truth: how often each way of timing is right. table: as `simulation.table`
    gives it."""
    scenarios = list(dict.fromkeys(r["scenario"] for r in table))
    measures = {
        "coverage": "interval holds the truth",
        "aa_false_positive_rate": "equal called different",
        "power": "3 % effect found",
    }
    figure, panels = new(11, 0.4 * len(scenarios) + 2.3, columns=3, sharey=True)
    heights = rows.heights(panels[0], scenarios)
    for axes, (key, title) in zip(panels, measures.items(), strict=True):
        axes.grid(axis="y", visible=False)
        for r in table:
            ours = r["protocol"] == "ours"
            height = heights[r["scenario"]] + (0.13 if ours else -0.13)
            error = 1.96 * np.sqrt(max(r[key] * (1 - r[key]), 0) / r["runs"])
            span = [100 * (r[key] - error), 100 * (r[key] + error)]
            axes.plot(span, [height] * 2, color=WITH if ours else BAD, linewidth=2, alpha=0.5)
            axes.plot(100 * r[key], height, "o" if ours else "X", color=WITH if ours else BAD, markersize=7)
        at = 100 * thresholds[key]
        axes.axvline(at, color="black", linestyle=":", linewidth=1.5)
        words = f"{'at most' if key == 'aa_false_positive_rate' else 'at least'} {at:.0f} %"
        notes.above(axes, at, words, "center", color="black")
        axes.set(xlim=(-3, 103), xlabel="% of simulated runs")
        axes.set_title(title, pad=18)
    panels[0].plot([], [], "o", color=WITH, label="this protocol: interleaved blocks, pairs, bootstrap of processes")
    panels[0].plot([], [], "X", color=BAD, label="one after the other, unpaired (Welch)")
    figure.legend(loc="outside lower center", ncols=1, fontsize=9.5)
    held = {r["protocol"]: r["coverage"] for r in table if r["scenario"] == scenarios[0]}
    others = [share for protocol, share in held.items() if protocol != "ours"]
    said = f"This protocol's intervals hold the truth in {held['ours']:.0%} of simulated runs" if "ours" in held else ""
    said += f", those of one after the other in {others[0]:.0%}" * bool(others)
    headline(figure, said or "Nothing was simulated")
    return figure
